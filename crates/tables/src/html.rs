//! One HTML page by itself: style and charts are in it, it fetches nothing, runs no script, and follows the
//! reader's choice of light or dark.

use crate::chart;
use crate::escape::escaped;
use crate::model::{Chart, Drawn, Place, Report, Row, Table};
use crate::number::{Unit, unit_name};
use crate::over_time;
use std::fmt::Write;

const STYLE: &str = include_str!("page.css");

pub fn page(report: &Report) -> String {
    let title = escaped(&report.title);
    let mut page = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n<h1>{title}</h1>\n"
    );
    let seed = report.seed.map_or(String::new(), |seed| format!(" · seed {seed}"));
    let _ = writeln!(page, "<p class=\"command\"><code>{}</code></p>", escaped(&report.command));
    let _ = writeln!(page, "<p class=\"machine\">{}{seed}</p>", escaped(&report.machine));
    notes(&mut page, &report.notes);
    overview(&mut page, report);
    report.tables.iter().for_each(|t| section(&mut page, t));
    page.push_str("</main>\n</body>\n</html>\n");
    page
}

fn overview(page: &mut String, report: &Report) {
    let Some(picture) = chart::changes(report) else { return };
    let _ = write!(
        page,
        "<figure>\n<figcaption>What each setting changes, against the first of its group \
         <span class=\"key\"><span class=\"new-key\">●</span> here <span class=\"published-key\">◇</span> \
         published</span></figcaption>\n<div class=\"scroll\">\n{picture}</div>\n</figure>\n"
    );
}

fn section(page: &mut String, table: &Table) {
    let _ = write!(page, "<section id=\"t{}\">\n<h2>{}</h2>\n", escaped(table.id), escaped(&table.title));
    if !table.rows.is_empty() {
        for chart in &table.charts {
            figure(page, table, *chart);
        }
        // A table with rows for charts alone is none for people.
        if table.rows.iter().any(|row| !row.detail) {
            rows(page, table);
            columns(page, table);
        }
    }
    notes(page, &table.notes);
    page.push_str("</section>\n");
}

fn figure(page: &mut String, table: &Table, chart: Chart) {
    let (key, pictures) = match chart {
        Chart::Bars { column, one_scale } => (column, chart::bars(table, column, one_scale)),
        Chart::Line { column } => {
            (column, chart::line(table, column).map(|p| (String::new(), p)).into_iter().collect())
        }
        Chart::Time { title, columns, drawn, limit } => {
            return figure_over_time(page, table, title, &over_time::Wanted { columns, drawn, limit });
        }
    };
    let Some(column) = table.column(key).map(|i| &table.columns[i]).filter(|_| !pictures.is_empty()) else {
        return;
    };
    let head = format!("{} {}", column.name, unit_name(column.unit));
    let _ = writeln!(page, "<figure>\n<figcaption>{}</figcaption>", escaped(head.trim_end()));
    match chart {
        Chart::Bars { .. } => page.push_str("<div class=\"panels\">\n"),
        _ => page.push_str(
            "<p class=\"key\"><span class=\"new-key\">●</span> measured <span class=\"faint\">╌</span> \
             in proportion to the first</p>\n<div class=\"scroll\">\n",
        ),
    }
    for (group, picture) in pictures {
        if group.is_empty() {
            page.push_str(&picture);
        } else {
            let _ = write!(page, "<div>\n<h3>{}</h3>\n{picture}</div>\n", escaped(&group));
        }
    }
    page.push_str("</div>\n</figure>\n");
}

fn figure_over_time(page: &mut String, table: &Table, title: &str, wanted: &over_time::Wanted) {
    let Some(picture) = over_time::picture(table, wanted) else { return };
    let mark = if wanted.drawn == Drawn::Stacked { "■" } else { "━" };
    let _ = write!(page, "<figure>\n<figcaption>{} <span class=\"key\">", escaped(title));
    let named = |key: &str| table.column(key).map(|i| &table.columns[i]);
    for (i, column) in wanted.columns.iter().filter_map(|key| named(key)).take(over_time::COLOURS).enumerate()
    {
        let (help, name) = (escaped(column.help), escaped(column.name));
        let _ = write!(page, "<span title=\"{help}\"><span class=\"k{i}\">{mark}</span> {name}</span> ");
    }
    if let Some(column) = wanted.limit.and_then(named) {
        let (help, name) = (escaped(column.help), escaped(column.name));
        let _ = write!(page, "<span title=\"{help}\"><span class=\"limit-key\">╌</span> {name}</span>");
    }
    let _ = write!(page, "</span></figcaption>\n<div class=\"scroll time\">\n{picture}</div>\n</figure>\n");
}

fn rows(page: &mut String, table: &Table) {
    let places = table.places();
    let title = escaped(&table.title);
    let _ = write!(
        page,
        "<div class=\"scroll\" role=\"region\" tabindex=\"0\" aria-label=\"Table: {title}\">\n<table>\n"
    );
    if has_names(table) {
        let _ = write!(page, "<thead><tr><th scope=\"col\">{}</th>", escaped(table.row_name));
        places.iter().for_each(|place| page.push_str(&head(table, *place)));
        page.push_str("</tr></thead>\n");
    }
    for (group, group_rows) in table.groups() {
        page.push_str("<tbody>\n");
        if !group.is_empty() {
            let across = 1 + places.len();
            let group = escaped(group);
            let _ = writeln!(
                page,
                "<tr class=\"group\"><th colspan=\"{across}\" scope=\"rowgroup\">{group}</th></tr>"
            );
        }
        for row in group_rows {
            let _ = write!(page, "<tr><th scope=\"row\">{}</th>", escaped(&row.setting));
            places.iter().for_each(|place| page.push_str(&cell(table, row, *place)));
            page.push_str("</tr>\n");
        }
        page.push_str("</tbody>\n");
    }
    page.push_str("</table>\n</div>\n");
}

fn head(table: &Table, place: Place) -> String {
    let Place::Column(i) = place else { return "<th scope=\"col\" class=\"words\">published</th>".into() };
    let column = &table.columns[i];
    let class = if column.unit == Unit::Words { " class=\"words\"" } else { "" };
    let unit = match unit_name(column.unit) {
        "" => String::new(),
        unit => format!("<small>{}</small>", escaped(unit)),
    };
    format!("<th scope=\"col\"{class} title=\"{}\">{}{unit}</th>", escaped(column.help), escaped(column.name))
}

fn cell(table: &Table, row: &Row, place: Place) -> String {
    let Place::Column(i) = place else {
        return format!("<td class=\"words\">{}</td>", escaped(row.published_text()));
    };
    let (cell, unit) = (&row.cells[i], table.columns[i].unit);
    let range = cell.range(unit).map_or(String::new(), |r| format!("<small>{}</small>", escaped(&r)));
    let class = if unit == Unit::Words { " class=\"words\"" } else { "" };
    format!("<td{class}>{}{range}</td>", escaped(&cell.shown(unit)))
}

/// If rows say all, columns have no names.
fn has_names(table: &Table) -> bool {
    table.columns.iter().any(|column| !column.name.is_empty())
}

fn columns(page: &mut String, table: &Table) {
    if !has_names(table) {
        return;
    }
    page.push_str("<details><summary>What the columns say</summary>\n<dl>\n");
    for place in table.places() {
        let Place::Column(i) = place else { continue };
        let column = &table.columns[i];
        let _ = writeln!(page, "<dt>{}</dt><dd>{}</dd>", escaped(column.name), escaped(column.help));
    }
    page.push_str("</dl>\n</details>\n");
}

fn notes(page: &mut String, notes: &[String]) {
    if notes.is_empty() {
        return;
    }
    page.push_str("<ul class=\"notes\">\n");
    notes.iter().for_each(|note| _ = writeln!(page, "<li>{}</li>", escaped(note)));
    page.push_str("</ul>\n");
}
