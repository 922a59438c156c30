//! How wide text is drawn, and text that ends before something else begins.

use super::element::Element;
use crate::render::broken;

/// The most that a text is wide: no font is at hand to measure with, so the widest that is usual is taken (DejaVu Sans).
pub(crate) fn width(text: &str, size: f64, bold: bool) -> f64 {
    let em: f64 = text.chars().map(letter).sum();
    em * size * if bold { 1.13 } else { 1.0 }
}

/// A letter's width in parts of its size.
fn letter(letter: char) -> f64 {
    match letter {
        'i' | 'j' | 'l' | ' ' | '.' | ',' | '\'' => 0.33,
        'f' | 'r' | 't' | 'I' | 'J' | '-' | ':' | ';' | '(' | ')' | '[' | ']' | '/' | '|' | '!' => 0.43,
        'm' | 'w' | 'M' | 'W' | '%' | '@' => 1.0,
        'A'..='Z' | '&' | '<' | '>' | '+' | '=' | '×' | '~' => 0.84,
        ' '..='~' | '·' => 0.65,
        _ => 1.05,
    }
}

/// The text, or as much of its beginning as is at most so wide.
fn cut(text: &str, room: f64, size: f64, bold: bool) -> String {
    if width(text, size, bold) <= room {
        return text.to_owned();
    }
    let mut used = width("…", size, bold);
    let fits = |letter: &char| {
        used += width(&letter.to_string(), size, bold);
        used <= room
    };
    text.chars().take_while(fits).chain(['…']).collect()
}

/// A label of a picture.
#[derive(Clone, Copy)]
pub(crate) struct Label {
    pub(crate) size: f64,
    pub(crate) bold: bool,
    /// `start`, `middle` or `end`: what of the text is at its place.
    pub(crate) anchor: &'static str,
    /// Its fill; of the theme's ink where there is none.
    pub(crate) fill: Option<&'static str>,
}

impl Label {
    pub(crate) const PLAIN: Self = Self { size: 12.0, bold: false, anchor: "start", fill: None };
    pub(crate) const MIDDLE: Self = Self { anchor: "middle", ..Self::PLAIN };
    pub(crate) const END: Self = Self { anchor: "end", ..Self::PLAIN };
    pub(crate) const BOLD: Self = Self { bold: true, ..Self::PLAIN };

    pub(crate) fn cut(self, text: &str, room: f64) -> String {
        cut(text, room, self.size, self.bold)
    }

    /// The text in so much room at a place, which is on its base line.
    pub(crate) fn draw(self, (x, y): (f64, f64), room: f64, text: &str) -> Element {
        let label = Element::new("text").at("x", x).at("y", y).with("font-size", self.size);
        let label = if self.anchor == "start" { label } else { label.with("text-anchor", self.anchor) };
        let label = if self.bold { label.with("font-weight", "bold") } else { label };
        let label = match self.fill {
            Some(fill) => label.with("fill", fill),
            None => label.with("class", "ink").with("fill", super::colours::INK),
        };
        // What is shown otherwise than it is may be longer.
        let shown = cacheplan_files::Shown(text).to_string();
        label.text(&self.cut(&shown, room))
    }
}

/// The text in lines of at most so much room, broken between words and behind commas as far as these are no longer.
pub(crate) fn wrapped(text: &str, room: f64, size: f64, bold: bool) -> Vec<String> {
    broken(&cacheplan_files::Shown(text).to_string(), |line| width(line, size, bold) <= room)
}
