//! Elements of pictures and documents. Text is text: whatever a model calls itself makes no markup.

use std::fmt::{self, Display, Formatter, Write};

use cacheplan_files::Shown;
use serde::Serialize;

/// An element, its attributes and what stands in it. As text it is markup; a page makes elements of it as data.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Element {
    pub(crate) tag: &'static str,
    pub(crate) attributes: Vec<(&'static str, String)>,
    pub(crate) children: Vec<Child>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub(crate) enum Child {
    Element(Element),
    Text(String),
}

impl Element {
    /// Makes an element with nothing in it.
    pub const fn new(tag: &'static str) -> Self {
        Self { tag, attributes: Vec::new(), children: Vec::new() }
    }

    /// Makes the root of a file of SVG, with a ground and so many pixels wide and high.
    pub fn file(width: f64, height: f64) -> Self {
        let svg = Self::new("svg").with("xmlns", "http://www.w3.org/2000/svg");
        let svg = svg.with("viewBox", format!("0 0 {width} {height:.1}")).at("width", width).at("height", height);
        let ground =
            Self::new("rect").with("width", "100%").with("height", "100%").with("fill", super::colours::GROUND);
        svg.with("font-family", super::FONT).child(ground)
    }

    /// Adds an attribute.
    #[must_use]
    pub fn with(mut self, name: &'static str, value: impl Display) -> Self {
        self.attributes.push((name, value.to_string()));
        self
    }

    /// Adds a place or a size, of which tenths of a pixel are enough.
    #[must_use]
    pub fn at(self, name: &'static str, pixels: f64) -> Self {
        let tenths = (pixels * 10.0).round() / 10.0;
        self.with(name, tenths)
    }

    /// Adds a text.
    #[must_use]
    pub fn text(mut self, text: &str) -> Self {
        self.children.push(Child::Text(Shown(text).to_string()));
        self
    }

    /// Rules of ours, which have no letter that would be escaped.
    pub(super) fn style(rules: &'static str) -> Self {
        let mut style = Self::new("style");
        style.children.push(Child::Text(rules.to_owned()));
        style
    }

    /// Adds an element.
    #[must_use]
    pub fn child(self, child: Self) -> Self {
        self.children([child])
    }

    /// Adds elements.
    #[must_use]
    pub fn children(mut self, children: impl IntoIterator<Item = Self>) -> Self {
        self.children.extend(children.into_iter().map(Child::Element));
        self
    }
}

impl Display for Element {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "<{}", self.tag)?;
        for (name, value) in &self.attributes {
            write!(f, " {name}=\"{}\"", Shown::markup(&Shown(value).to_string()))?;
        }
        // Browsers read HTML, in which only these may end at once.
        if matches!(self.tag, "circle" | "meta" | "path" | "rect") && self.children.is_empty() {
            return f.write_str("/>");
        }
        f.write_char('>')?;
        for child in &self.children {
            match child {
                Child::Text(text) => f.write_str(&Shown::markup(text))?,
                Child::Element(element) => writeln!(f, "{element}")?,
            }
        }
        write!(f, "</{}>", self.tag)
    }
}

/// A table whose first column names the rows; columns whose index is in `numbers` end flush.
pub(crate) fn table(caption: &str, head: &[&str], numbers: &[usize], rows: &[Vec<String>]) -> Element {
    let cell = |(column, text): (usize, &String)| {
        let cell = if column == 0 { Element::new("th").with("scope", "row") } else { Element::new("td") };
        let cell = if numbers.contains(&column) { cell.with("class", "number") } else { cell };
        cell.text(text)
    };
    let heading = head.iter().map(|name| Element::new("th").with("scope", "col").text(name));
    let rows = rows.iter().map(|row| Element::new("tr").children(row.iter().enumerate().map(cell)));
    Element::new("table")
        .child(Element::new("caption").text(caption))
        .child(Element::new("thead").child(Element::new("tr").children(heading)))
        .child(Element::new("tbody").children(rows))
}

/// A list of what colours mean.
pub(crate) fn legend(rows: impl IntoIterator<Item = (Vec<String>, String)>) -> Element {
    let row = |(fills, text): (Vec<String>, String)| {
        Element::new("li").children(fills.iter().map(|fill| swatch(fill))).text(&text)
    };
    Element::new("ul").with("class", "legend").children(rows.into_iter().map(row))
}

fn swatch(fill: &str) -> Element {
    let square = Element::new("rect").with("width", 13).with("height", 13);
    let square = square.with("fill", fill).with("stroke", super::colours::EDGE);
    Element::new("svg").with("class", "swatch").with("width", 13).with("height", 13).child(square)
}
