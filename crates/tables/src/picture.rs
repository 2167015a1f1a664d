//! An SVG in the making: text, lines, bars, dots and areas, by class. The page says what they look like
//! (page.css); the charts say where they are.

use crate::escape::escaped;
use std::fmt::Write;

/// An SVG in the making, in pixels.
pub struct Picture {
    width: f64,
    height: f64,
    body: String,
}

impl Picture {
    pub fn new(width: f64, height: f64) -> Picture {
        Picture { width, height, body: String::new() }
    }
    pub fn text(&mut self, class: &str, x: f64, y: f64, text: &str) {
        let _ =
            writeln!(self.body, "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\">{}</text>", escaped(text));
    }
    pub fn line(&mut self, class: &str, (x1, y1): (f64, f64), (x2, y2): (f64, f64)) {
        let _ = writeln!(
            self.body,
            "<line class=\"{class}\" x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\"/>"
        );
    }
    pub fn bar(&mut self, class: &str, (x, y): (f64, f64), (width, height): (f64, f64)) {
        let _ = writeln!(
            self.body,
            "<rect class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" \
             rx=\"2\"/>"
        );
    }
    pub fn dot(&mut self, x: f64, y: f64, says: &str) {
        let says = escaped(says);
        let _ = writeln!(
            self.body,
            "<circle class=\"new\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4.5\"><title>{says}</title></circle>"
        );
    }
    pub fn diamond(&mut self, x: f64, y: f64, says: &str) {
        const R: f64 = 5.5;
        let _ = writeln!(
            self.body,
            "<path class=\"published\" d=\"M{:.1} {y:.1} L{x:.1} {:.1} L{:.1} {y:.1} L{x:.1} {:.1} \
             Z\"><title>{}</title></path>",
            x - R,
            y - R,
            x + R,
            y + R,
            escaped(says)
        );
    }
    pub fn path(&mut self, class: &str, points: &[(f64, f64)]) {
        let mut way = String::new();
        for (i, (x, y)) in points.iter().enumerate() {
            let _ = write!(way, "{}{x:.1} {y:.1}", if i == 0 { "M" } else { " L" });
        }
        let _ = writeln!(self.body, "<path class=\"{class}\" d=\"{way}\"/>");
    }
    /// What is between two lines from left to right.
    pub fn area(&mut self, class: &str, above: &[(f64, f64)], below: &[(f64, f64)]) {
        let mut way = String::new();
        for (i, (x, y)) in above.iter().chain(below.iter().rev()).enumerate() {
            let _ = write!(way, "{}{x:.1} {y:.1}", if i == 0 { "M" } else { " L" });
        }
        let _ = writeln!(self.body, "<path class=\"{class}\" d=\"{way} Z\"/>");
    }
    /// Nothing to see, until a pointer is there: then `says`.
    pub fn hint(&mut self, (x, y): (f64, f64), (width, height): (f64, f64), says: &str) {
        let _ = writeln!(
            self.body,
            "<rect class=\"hint\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\">\
             <title>{}</title></rect>",
            escaped(says)
        );
    }
    /// `says`: the whole picture in words.
    pub fn finish(self, says: &str) -> String {
        format!(
            "<svg role=\"img\" aria-label=\"{}\" viewBox=\"0 0 {:.0} {:.0}\" width=\"{:.0}\" \
             height=\"{:.0}\">\n{}</svg>\n",
            escaped(says),
            self.width,
            self.height,
            self.width,
            self.height,
            self.body
        )
    }
}

/// As much of a label as fits.
pub fn cut(text: &str, characters: usize) -> String {
    if text.chars().count() <= characters {
        return text.to_string();
    }
    text.chars().take(characters - 1).chain(['…']).collect()
}
