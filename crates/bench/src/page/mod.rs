//! All reports of a folder as one page to look at: tables from their Markdown, plots inlined, so that the page needs no other file.
//!
//! What a report is, `report` knows: a heading, text, plots beside it in the folder, tables, and last the table of the machine, which
//! is folded away behind its date and commit. Reports that were written by hand are as good.

use anyhow::{Context as _, Result, bail, ensure};
use pulldown_cmark::{CowStr, Event, HeadingLevel, Options, Parser, Tag, TagEnd, html};
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

/// What the page ends with: how all of it was measured.
const GUIDE: &str = "README";

/// A report as the page has it.
#[derive(Debug)]
struct Section {
    /// the file's name without extension, and its place on the page
    name: String,
    title: String,
    /// facts of the machine's table, where it has one
    facts: Vec<(String, String)>,
    /// the whole report
    html: String,
}

/// The page of all reports in `folder`.
pub(crate) fn page(folder: &Path) -> Result<String> {
    let mut names = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))? {
        let path = entry.with_context(|| format!("cannot read {}", folder.display()))?.path();
        if path.extension().is_some_and(|extension| extension == "md") {
            names.extend(path.file_stem().and_then(|name| name.to_str()).map(String::from));
        }
    }
    ensure!(!names.is_empty(), "no report (*.md) in {}; experiments write them there with --out", folder.display());
    names.sort_unstable_by_key(|name| (name == GUIDE, name.clone()));
    let sections: Vec<Section> = names.iter().map(|name| section(folder, name)).collect::<Result<_>>()?;
    Ok(whole(&sections))
}

fn section(folder: &Path, name: &str) -> Result<Section> {
    let path = folder.join(format!("{name}.md"));
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let mut section = Section { name: name.into(), title: name.into(), facts: facts(&text), html: String::new() };
    let mut events = Parser::new_ext(&text, Options::ENABLE_TABLES);
    let mut out = Vec::new();
    while let Some(event) = events.next() {
        match event {
            Event::Start(Tag::Heading { level: HeadingLevel::H1, .. }) => {
                section.title = text_until(&mut events, TagEnd::Heading(HeadingLevel::H1));
            }
            Event::Start(Tag::Heading { level, .. }) => {
                out.push(Event::Start(Tag::Heading { level: lower(level), id: None, classes: vec![], attrs: vec![] }));
            }
            Event::End(TagEnd::Heading(level)) => out.push(Event::End(TagEnd::Heading(lower(level)))),
            Event::Start(Tag::Image { dest_url, .. }) => {
                let alt = text_until(&mut events, TagEnd::Image);
                let plot = plot(folder, &dest_url, &alt).with_context(|| format!("in {}", path.display()))?;
                out.push(Event::InlineHtml(plot.into()));
            }
            Event::Start(Tag::Link { link_type, dest_url, title, id }) => {
                let dest_url = local(folder, dest_url);
                out.push(Event::Start(Tag::Link { link_type, dest_url, title, id }));
            }
            Event::Start(Tag::Table(alignments)) => {
                let mut table = vec![Event::Start(Tag::Table(alignments))];
                table.extend(events.by_ref().take_while(|event| *event != Event::End(TagEnd::Table)));
                table.push(Event::End(TagEnd::Table));
                let (before, after) = around(&table, &section.facts);
                out.push(Event::Html(before.into()));
                out.extend(table);
                out.push(Event::Html(after.into()));
            }
            // nothing of ours has any; what looks like it is text
            Event::Html(text) | Event::InlineHtml(text) => out.push(Event::Text(text)),
            other => out.push(other),
        }
    }
    html::push_html(&mut section.html, out.into_iter());
    if folder.join(format!("{name}.csv")).is_file() {
        let _ = writeln!(section.html, "<p><a href=\"{0}.csv\">{0}.csv</a></p>", escaped(name));
    }
    Ok(section)
}

/// The facts of a machine's table, by the lines that `Machine::markdown` writes.
fn facts(text: &str) -> Vec<(String, String)> {
    let rows = text.lines().skip_while(|line| !line.starts_with("| machine |")).skip(2);
    let fact = |line: &str| {
        let (name, value) = line.trim_matches(['|', ' ']).split_once('|')?;
        Some((name.trim().to_owned(), value.trim().replace("\\|", "|")))
    };
    rows.take_while(|line| line.starts_with('|')).filter_map(fact).collect()
}

fn fact<'a>(facts: &'a [(String, String)], name: &str) -> Option<&'a str> {
    facts.iter().find(|(other, _)| other == name).map(|(_, value)| value.as_str())
}

/// What stands before and after a table: room to scroll, and for the machine's a fold.
fn around(table: &[Event<'_>], facts: &[(String, String)]) -> (String, &'static str) {
    let first = table.iter().find_map(|event| if let Event::Text(text) = event { Some(text) } else { None });
    if first.is_none_or(|text| text.trim() != "machine") {
        return ("<div class=\"table\">".into(), "</div>");
    }
    let date = fact(facts, "date").unwrap_or("at an unknown time");
    let commit = fact(facts, "commit").unwrap_or("unknown");
    let summary = format!("measured {date}, commit {commit}");
    (format!("<details><summary>{}</summary><div class=\"table\">", escaped(&summary)), "</div></details>")
}

/// All text up to `end`, which is taken as well.
fn text_until<'a>(events: &mut impl Iterator<Item = Event<'a>>, end: TagEnd) -> String {
    let mut text = String::new();
    for event in events.take_while(|event| *event != Event::End(end)) {
        match event {
            Event::Text(part) | Event::Code(part) => text += &part,
            Event::SoftBreak | Event::HardBreak => text.push(' '),
            _ => {}
        }
    }
    text
}

/// Headings of a report stand below its own, which stands below the page's.
fn lower(level: HeadingLevel) -> HeadingLevel {
    HeadingLevel::try_from(level as usize + 1).unwrap_or(HeadingLevel::H6)
}

/// The SVG of a file, to stand in the page.
fn plot(folder: &Path, name: &str, alt: &str) -> Result<String> {
    ensure!(name.ends_with(".svg") && !name.contains('/'), "{name} is no plot (*.svg) of the same folder");
    let path = folder.join(name);
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let Some(at) = text.find("<svg") else { bail!("{} is no SVG", path.display()) };
    ensure!(!text.contains("<script"), "{} has a script", path.display());
    Ok(format!("<span class=\"plot\" role=\"img\" aria-label=\"{}\">{}</span>", escaped(alt), text[at..].trim_end()))
}

/// A link to another report leads to its place on the page.
fn local<'a>(folder: &Path, url: CowStr<'a>) -> CowStr<'a> {
    match url.strip_suffix(".md") {
        Some(name) if !name.contains('/') && folder.join(&*url).is_file() => format!("#{name}").into(),
        _ => url,
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

const STYLE: &str = "\
:root{color-scheme:light dark;--line:#8884;--soft:#8882}
body{font:16px/1.5 system-ui,sans-serif;max-width:76rem;margin:0 auto;padding:1rem 1.25rem 4rem}
h1,h2,h3{line-height:1.25}
section{border-top:1px solid var(--line);margin-top:2.5rem}
.table{overflow-x:auto;margin:1rem 0}
table{border-collapse:collapse;font-size:.875rem;font-variant-numeric:tabular-nums}
th,td{padding:.2rem .6rem;border-bottom:1px solid var(--line);vertical-align:top}
th{text-align:left;background:var(--soft)}
.plot{display:block;margin:1rem 0;background:#fff;max-width:960px}
.plot svg{max-width:100%;height:auto;display:block}
pre{overflow-x:auto;padding:.6rem;background:var(--soft)}
code{font-size:.875em;overflow-wrap:anywhere}
summary{cursor:pointer}
@media print{details>*{display:block}}
";

fn whole(sections: &[Section]) -> String {
    let mut text = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n<title>simoom: measurements</title>\n\
         <style>\n{STYLE}</style>\n</head>\n<body>\n<h1>simoom: measurements</h1>\n\
         <p>Made by <code>simoom-bench results</code> from the reports beside this page.</p>\n\
         <nav class=\"table\"><table>\n<thead><tr><th>report</th><th>measured</th><th>commit</th><th>command</th></tr></thead>\n<tbody>\n"
    );
    for section in sections {
        let cell = |name| escaped(fact(&section.facts, name).unwrap_or_default());
        // writing to a String does not fail
        let _ = writeln!(
            text,
            "<tr><td><a href=\"#{}\">{}</a></td><td>{}</td><td>{}</td><td><code>{}</code></td></tr>",
            escaped(&section.name),
            escaped(&section.title),
            cell("date"),
            cell("commit"),
            cell("command")
        );
    }
    text += "</tbody>\n</table></nav>\n";
    for Section { name, title, html, .. } in sections {
        let _ = writeln!(text, "<section id=\"{}\">\n<h2>{}</h2>\n{html}</section>", escaped(name), escaped(title));
    }
    text + "</body>\n</html>\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            fs::write(folder.path().join(name), text).unwrap();
        }
        folder
    }

    const REPORT: &str = "# A & B\n\nCounted <b>, see [the other](other.md) and [a file](other.csv).\n\n![A plot](a.svg)\n\n## More\n\n\
        | server | answers/s |\n|---|---:|\n| x\\|y | 9 |\n\n\
        | machine | |\n|---|---|\n| date | 2026-11-21 05:10 UTC |\n| commit | abc |\n| command | simoom-bench x \\| 'y' |\n";

    #[test]
    fn a_page_has_every_report_its_plots_and_its_facts_and_needs_nothing_else() {
        let svg = "<?xml version=\"1.0\"?>\n<svg width=\"9\"><circle/></svg>\n";
        let files =
            [("b.md", REPORT), ("other.md", "# Other\n"), ("README.md", "# How\n"), ("a.svg", svg), ("b.csv", "x\n")];
        let text = page(folder(&files).path()).unwrap();
        for part in [
            "<section id=\"b\">\n<h2>A &amp; B</h2>",
            "Counted &lt;b&gt;",
            "<a href=\"#other\">the other</a>",
            "<a href=\"other.csv\">a file</a>",
            "<span class=\"plot\" role=\"img\" aria-label=\"A plot\"><svg width=\"9\"><circle/></svg></span>",
            "<h3>More</h3>",
            "<td>x|y</td><td style=\"text-align: right\">9</td>",
            "<details><summary>measured 2026-11-21 05:10 UTC, commit abc</summary>",
            "<td>abc</td><td><code>simoom-bench x | 'y'</code></td>",
            "<a href=\"b.csv\">b.csv</a>",
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
        assert!(!text.contains("<?xml") && !text.contains("<img") && !text.contains("src="), "{text}");
        // the guide comes last
        let at = |name: &str| text.find(&format!("<section id=\"{name}\">")).unwrap();
        assert!(at("b") < at("other") && at("other") < at("README"));
        assert_eq!(text.matches("<details>").count(), 1);
        assert_eq!(text.matches("<h1>").count(), 1);
    }

    #[test]
    fn what_is_missing_or_strange_is_told_with_its_place() {
        let error = |files: &[(&str, &str)]| format!("{:#}", page(folder(files).path()).unwrap_err());
        assert!(error(&[]).contains("no report (*.md) in "));
        let text = error(&[("b.md", REPORT)]);
        assert!(text.contains("b.md: cannot read ") && text.contains("a.svg"), "{text}");
        assert!(error(&[("b.md", REPORT), ("a.svg", "<html>")]).contains("a.svg is no SVG"));
        assert!(error(&[("b.md", REPORT), ("a.svg", "<svg><script/></svg>")]).contains("has a script"));
        assert!(error(&[("b.md", "![x](../a.svg)")]).contains("is no plot"));
        assert!(format!("{:#}", page(Path::new("/nope")).unwrap_err()).contains("cannot read /nope"));
    }

    #[test]
    fn the_projects_own_reports_make_a_page() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/results");
        let text = page(&folder).unwrap();
        let reports = fs::read_dir(&folder).unwrap().flatten().map(|entry| entry.path());
        let count = reports.filter(|path| path.extension().is_some_and(|extension| extension == "md")).count();
        assert_eq!(text.matches("<section id=").count(), count);
        assert!(text.contains("<svg ") && text.contains("<details>"), "no plot, or no machine");
    }
}
