//! Figures that a grid of rates finds, and those that it does not reach: below its lowest rate, or above what it had to ask with.
//! What is known of one is an interval, and a median of several is one of intervals.

use crate::report::Cell;
use crate::stats;
use std::fmt;

/// What a round says of a figure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Found {
    /// this
    Is(f64),
    /// less than what was measured at all
    Below(f64),
    /// this or more: no more was asked for, or no more was brought about
    AtLeast(f64),
}

impl Found {
    /// The figure itself, where it is known.
    pub(crate) fn is(self) -> Option<f64> {
        match self {
            Found::Is(value) => Some(value),
            Found::Below(_) | Found::AtLeast(_) => None,
        }
    }

    /// The figure, or the number that it is known by.
    pub(crate) fn number(self) -> f64 {
        match self {
            Found::Is(value) | Found::Below(value) | Found::AtLeast(value) => value,
        }
    }

    /// A cell of a table.
    pub(crate) fn cell(self, decimals: usize) -> Cell {
        match self {
            Found::Is(value) => Cell::Number(value, decimals),
            Found::Below(value) => Cell::Below(value, decimals),
            Found::AtLeast(value) => Cell::AtLeast(value, decimals),
        }
    }

    fn least(self) -> f64 {
        if matches!(self, Found::Below(_)) { 0.0 } else { self.number() }
    }

    fn greatest(self) -> f64 {
        if matches!(self, Found::AtLeast(_)) { f64::INFINITY } else { self.number() }
    }
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = match self {
            Found::Is(_) => "",
            Found::Below(_) => "< ",
            Found::AtLeast(_) => "≥ ",
        };
        f.pad(&format!("{sign}{:.0}", self.number()))
    }
}

/// What is told of one figure's rounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Rounds {
    /// their median
    pub(crate) median: Found,
    /// the least of them
    pub(crate) least: Found,
    /// the greatest of them
    pub(crate) greatest: Found,
}

impl Rounds {
    /// Of `found`; None without a round. The greatest, the least and the median grow with each figure, so those of the figures' bounds
    /// are theirs.
    pub(crate) fn of(found: &[Found]) -> Option<Rounds> {
        let bounds: [Vec<f64>; 2] =
            [Found::least, Found::greatest].map(|of| found.iter().map(|one| of(*one)).collect());
        let below = found.iter().any(|one| matches!(one, Found::Below(_)));
        let told = |of: fn(&[f64]) -> Option<f64>| match [of(&bounds[0])?, of(&bounds[1])?] {
            [least, greatest] if least == greatest => Some(Found::Is(least)),
            [_, greatest] if below && greatest.is_finite() => Some(Found::Below(greatest)),
            [least, _] => Some(Found::AtLeast(least)),
        };
        Some(Rounds {
            median: told(stats::median)?,
            least: told(|values| values.iter().copied().reduce(f64::min))?,
            greatest: told(|values| values.iter().copied().reduce(f64::max))?,
        })
    }
}

/// The figure of every round; None where one is known by a bound alone, since a ratio of the other rounds would be one of chosen rounds.
pub(crate) fn whole(found: &[Found]) -> Option<Vec<f64>> {
    found.iter().map(|one| one.is()).collect()
}

#[cfg(test)]
mod tests {
    use super::Found::{AtLeast, Below, Is};
    use super::*;

    #[test]
    fn rounds_that_are_known_by_a_bound_have_a_median_that_is_so_where_it_matters() {
        let told = |found: &[Found]| {
            let Rounds { median, least, greatest } = Rounds::of(found).unwrap();
            [median, least, greatest]
        };
        assert_eq!(told(&[Is(3.0), Is(1.0), Is(2.0)]), [Is(2.0), Is(1.0), Is(3.0)]);
        assert_eq!(told(&[Below(4.0), Is(6.0), Is(5.0)]), [Is(5.0), Below(4.0), Is(6.0)]);
        assert_eq!(told(&[Below(4.0), Is(6.0), Below(4.0)]), [Below(4.0), Below(4.0), Is(6.0)]);
        assert_eq!(told(&[Below(4.0), Is(6.0)]), [Below(5.0), Below(4.0), Is(6.0)]);
        // above the middle it is told by the greatest alone; else any of the others may be the middle
        assert_eq!(told(&[Is(5.0), Is(6.0), AtLeast(7.0)]), [Is(6.0), Is(5.0), AtLeast(7.0)]);
        assert_eq!(told(&[AtLeast(5.0), Is(6.0), Is(7.0)]), [AtLeast(6.0), AtLeast(5.0), AtLeast(7.0)]);
        assert_eq!(told(&[Below(4.0), AtLeast(7.0)]), [AtLeast(3.5), Below(4.0), AtLeast(7.0)]);
        assert_eq!(Rounds::of(&[]), None);
    }

    #[test]
    fn a_ratio_wants_every_round_itself() {
        assert_eq!(whole(&[Is(1.0), Is(2.0)]), Some(vec![1.0, 2.0]));
        for other in [Below(2.0), AtLeast(2.0)] {
            assert_eq!(whole(&[Is(1.0), other]), None);
        }
    }

    #[test]
    fn a_bound_is_told_as_one() {
        assert_eq!(format!("{:>6} {:>6} {:>6}", Is(9.0), Below(12.0), AtLeast(10.4)), "     9   < 12   ≥ 10");
    }
}
