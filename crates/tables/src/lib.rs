//! Tables of results: what was measured, and the forms in which it is shown.
//!
//! ```text
//!   sim, bench ──▶ Report ─┬─▶ text.rs      for a terminal
//!                          ├─▶ json.rs      for programs: all that is known
//!                          ├─▶ csv.rs       one line for each cell
//!                          ├─▶ markdown.rs  for a README
//!                          └─▶ html.rs      one page by itself, with charts (chart.rs, over_time.rs)
//! ```
//!
//! Every form is a function of the report: no clock, no random number, no order of a hash map, nothing
//! fetched. Numbers are formed for people in one place (number.rs); what others have reported stands in
//! another (published.rs). What it does not do: measure, or decide what a median is.

mod axis;
mod chart;
mod csv;
mod escape;
mod html;
pub mod json;
mod markdown;
mod model;
pub mod number;
mod over_time;
mod picture;
pub mod published;
mod text;

pub use model::{Cell, Chart, Column, Drawn, Published, Report, Row, Spread, Table};
pub use number::Unit;

/// Forms that go to a terminal or a pipe; the HTML page is written besides ([`html`]).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    Text,
    Json,
    Csv,
    Markdown,
}

impl Form {
    pub fn of(self, report: &Report) -> String {
        match self {
            Form::Text => text::text(report),
            Form::Json => json::json(report),
            Form::Csv => csv::csv(report),
            Form::Markdown => markdown::markdown(report),
        }
    }
}

/// The page, which needs no other file, no network and no script.
pub fn html(report: &Report) -> String {
    html::page(report)
}
