//! Lines over one axis as SVG: a colour and a marker a series, the spread of the rounds as a thin bar, the legend beside the
//! plot so that it never hides a point.

use anyhow::{Result, anyhow};
use plotters::coord::ranged1d::{AsRangedCoord, Ranged, ValueFormatter};
use plotters::prelude::*;

const WIDTH: u32 = 960;
const HEIGHT: u32 = 540;
/// Space right of the plot for the legend.
const LEGEND_WIDTH: u32 = 240;

/// Colours that differ for colour-blind readers too (Okabe and Ito 2008), then grey.
const COLOURS: [RGBColor; 8] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(230, 159, 0),
    RGBColor(0, 0, 0),
    RGBColor(128, 128, 128),
];

/// An axis.
#[derive(Clone, Debug)]
pub(crate) struct Axis {
    /// what it shows, with its unit
    label: String,
    logarithmic: bool,
}

impl Axis {
    /// Even steps; begins at 0.
    pub(crate) fn linear(label: &str) -> Axis {
        Axis { label: label.into(), logarithmic: false }
    }

    /// Even factors; all values are above 0.
    pub(crate) fn logarithmic(label: &str) -> Axis {
        Axis { label: label.into(), logarithmic: true }
    }
}

/// One line of the plot.
#[derive(Clone, Debug)]
pub(crate) struct Series {
    name: String,
    points: Vec<(f64, f64)>,
    /// least and greatest of the rounds at each point, where known
    spread: Vec<(f64, f64)>,
}

impl Series {
    /// A line through `points`, which stand in the order of x.
    pub(crate) fn new(name: impl Into<String>, points: Vec<(f64, f64)>) -> Series {
        Series { name: name.into(), points, spread: Vec::new() }
    }

    /// A line through points that each have the least and greatest of their rounds.
    pub(crate) fn ranged(name: impl Into<String>, points: impl Iterator<Item = ((f64, f64), (f64, f64))>) -> Series {
        let (points, spread): (Vec<_>, Vec<_>) = points.unzip();
        Series::new(name, points).with_spread(spread)
    }

    /// Whether it has no point.
    pub(crate) fn is_empty(&self) -> bool {
        self.points.is_empty()
    }

    /// With the least and greatest of each point's rounds.
    ///
    /// # Panics
    /// When that is not one pair a point.
    pub(crate) fn with_spread(mut self, spread: Vec<(f64, f64)>) -> Series {
        assert_eq!(spread.len(), self.points.len(), "a spread a point");
        self.spread = spread;
        self
    }
}

/// A plot.
#[derive(Clone, Debug)]
pub(crate) struct Chart {
    /// stands above it
    pub(crate) title: String,
    /// across
    pub(crate) x: Axis,
    /// up
    pub(crate) y: Axis,
    /// the lines
    pub(crate) series: Vec<Series>,
}

impl Chart {
    /// The plot as SVG text.
    pub(crate) fn svg(&self) -> Result<String> {
        let mut text = String::new();
        self.draw(&mut text).map_err(|error| anyhow!("cannot draw '{}': {error}", self.title))?;
        Ok(text)
    }

    fn draw(&self, text: &mut String) -> Result<(), Box<dyn std::error::Error>> {
        let root = SVGBackend::with_string(text, (WIDTH, HEIGHT)).into_drawing_area();
        root.fill(&WHITE)?;
        let (plot, legend) = root.split_horizontally(WIDTH - LEGEND_WIDTH);
        let ((x_least, x_greatest), y_greatest) = self.extent().ok_or("there is nothing to draw")?;
        let even = 0.0..y_greatest * 1.05;
        let factors = (self.least_y() / 1.2..y_greatest * 1.2).log_scale();
        if self.x.logarithmic {
            let x = (x_least / 1.2..x_greatest * 1.2).log_scale().with_key_points(self.ticks());
            if self.y.logarithmic { self.draw_plot(&plot, x, factors)? } else { self.draw_plot(&plot, x, even)? }
        } else {
            let margin = (x_greatest - x_least).max(1.0) * 0.03;
            let x = x_least - margin..x_greatest + margin;
            if self.y.logarithmic { self.draw_plot(&plot, x, factors)? } else { self.draw_plot(&plot, x, even)? }
        }
        self.draw_legend(&legend)?;
        root.present()?;
        Ok(())
    }

    /// The x values that were measured: a sweep by factors has few, and each deserves its tick.
    fn ticks(&self) -> Vec<f64> {
        let mut ticks: Vec<f64> =
            self.series.iter().flat_map(|series| series.points.iter().map(|point| point.0)).collect();
        ticks.sort_by(f64::total_cmp);
        ticks.dedup();
        ticks
    }

    fn extent(&self) -> Option<((f64, f64), f64)> {
        let points = || self.series.iter().flat_map(|series| series.points.iter());
        let highest = self.series.iter().flat_map(|series| series.spread.iter().map(|spread| spread.1));
        points().next()?;
        let x_least = points().map(|point| point.0).fold(f64::INFINITY, f64::min);
        let x_greatest = points().map(|point| point.0).fold(f64::NEG_INFINITY, f64::max);
        let y_greatest = points().map(|point| point.1).chain(highest).fold(0.0, f64::max);
        (!self.x.logarithmic || x_least > 0.0)
            .then_some(((x_least, x_greatest), if y_greatest > 0.0 { y_greatest } else { 1.0 }))
    }

    /// The least value above 0, on an axis of even factors.
    fn least_y(&self) -> f64 {
        let points = self.series.iter().flat_map(|series| series.points.iter().map(|point| point.1));
        let lowest = self.series.iter().flat_map(|series| series.spread.iter().map(|spread| spread.0));
        let least = points.chain(lowest).filter(|y| *y > 0.0).fold(f64::INFINITY, f64::min);
        if least.is_finite() { least } else { 1.0 }
    }

    fn draw_plot<X, Y>(
        &self,
        area: &DrawingArea<SVGBackend<'_>, plotters::coord::Shift>,
        x: X,
        y: Y,
    ) -> Result<(), Box<dyn std::error::Error>>
    where
        X: AsRangedCoord<Value = f64>,
        X::CoordDescType: Ranged<ValueType = f64> + ValueFormatter<f64>,
        Y: AsRangedCoord<Value = f64>,
        Y::CoordDescType: Ranged<ValueType = f64> + ValueFormatter<f64>,
    {
        let mut builder = ChartBuilder::on(area);
        builder.margin(16).x_label_area_size(48).y_label_area_size(80);
        let mut context = builder.caption(&self.title, ("sans-serif", 20)).build_cartesian_2d(x, y)?;
        let mut mesh = context.configure_mesh();
        mesh.x_desc(&self.x.label).y_desc(&self.y.label).axis_desc_style(("sans-serif", 16));
        mesh.label_style(("sans-serif", 13)).light_line_style(TRANSPARENT).bold_line_style(BLACK.mix(0.12));
        mesh.x_label_formatter(&|value| short(*value)).y_label_formatter(&|value| short(*value)).draw()?;
        for (series, colour) in self.series.iter().zip(COLOURS.iter().cycle()) {
            context.draw_series(LineSeries::new(series.points.iter().copied(), colour.stroke_width(2)))?;
            for (point, spread) in series.points.iter().zip(&series.spread) {
                let bar = PathElement::new([(point.0, spread.0), (point.0, spread.1)], colour.mix(0.5).stroke_width(1));
                context.draw_series([bar])?;
            }
            context.draw_series(series.points.iter().map(|&point| Circle::new(point, 4, colour.filled())))?;
        }
        Ok(())
    }

    fn draw_legend(
        &self,
        area: &DrawingArea<SVGBackend<'_>, plotters::coord::Shift>,
    ) -> Result<(), Box<dyn std::error::Error>> {
        for (at, (series, colour)) in self.series.iter().zip(COLOURS.iter().cycle()).enumerate() {
            let y = 60 + 26 * at as i32;
            area.draw(&PathElement::new([(4, y), (32, y)], colour.stroke_width(2)))?;
            area.draw(&Circle::new((18, y), 4, colour.filled()))?;
            area.draw(&Text::new(series.name.clone(), (40, y - 7), ("sans-serif", 14)))?;
        }
        Ok(())
    }
}

/// A number for an axis: 1.2 M, 300 k, 1024, 64, 0.5.
fn short(value: f64) -> String {
    let (scaled, unit) = match value.abs() {
        // powers of two are known by all their digits
        v if v < 1e4 && v.fract() == 0.0 && v % 100.0 != 0.0 => (value, ""),
        v if v >= 1e6 => (value / 1e6, " M"),
        v if v >= 1e3 => (value / 1e3, " k"),
        _ => (value, ""),
    };
    let text = format!("{scaled:.2}");
    format!("{}{unit}", text.trim_end_matches('0').trim_end_matches('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(x: Axis, points: Vec<(f64, f64)>) -> Chart {
        let spread = points.iter().map(|point| (point.1 * 0.9, point.1 * 1.1)).collect();
        let series = vec![Series::new("ours & theirs", points).with_spread(spread)];
        Chart { title: "Throughput".into(), x, y: Axis::linear("answers/s"), series }
    }

    #[test]
    fn a_plot_names_its_axes_series_and_measured_points() {
        let points = vec![(1.0, 500e3), (100.0, 450e3), (10_000.0, 400e3)];
        let svg = chart(Axis::logarithmic("names"), points).svg().unwrap();
        for part in ["<svg", "Throughput", "names", "answers/s", "ours &amp; theirs", "10 k", "400 k"] {
            assert!(svg.contains(part), "{part} in {svg}");
        }
        // a marker a point and one in the legend
        assert_eq!(svg.matches("<circle").count(), 4);
    }

    #[test]
    fn one_point_and_zero_heights_can_be_drawn_and_nothing_cannot() {
        assert!(chart(Axis::linear("batch"), vec![(1.0, 0.0)]).svg().is_ok());
        assert!(chart(Axis::logarithmic("names"), vec![(0.0, 1.0)]).svg().is_err());
        let error = chart(Axis::linear("batch"), Vec::new()).svg().unwrap_err().to_string();
        assert_eq!(error, "cannot draw 'Throughput': there is nothing to draw");
    }

    #[test]
    fn axis_numbers_are_short() {
        let numbers = [
            (0.0, "0"),
            (0.5, "0.5"),
            (64.0, "64"),
            (1000.0, "1 k"),
            (1024.0, "1024"),
            (12_500.0, "12.5 k"),
            (1.25e6, "1.25 M"),
        ];
        for (value, expected) in numbers {
            assert_eq!(short(value), expected);
        }
    }
}
