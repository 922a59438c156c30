//! Pictures as files of their own: SVG, 1000 pixels wide, with what they are of and what their colours mean.

use super::chart::{Chart, Line};
use super::element::Element;
use super::letters::{Label, wrapped};
use super::{capacity_heading, colours, heat, map, percent, size};
use crate::device::DeviceInfo;
use crate::fit::Answer;
use crate::plan::{CachePlan, LedgerItem, Pool};
use crate::render::{ranges, source_name};
use crate::size::separated;

const WIDTH: f64 = 1000.0;
const MARGIN: f64 = 24.0;
const INNER: f64 = WIDTH - 2.0 * MARGIN;
const LINE: f64 = 17.0;
/// Where a row of the legend says what a part is.
const NOTE: f64 = 540.0;

impl CachePlan {
    /// The memory map as SVG, 1000 pixels wide: areas by size, and a legend with each line of the ledger.
    pub fn svg(&self) -> String {
        self.svg_on(None)
    }

    /// The same for a device, whose every byte is there.
    pub fn svg_on(&self, device: Option<&DeviceInfo>) -> String {
        format!("{}\n", self.sheet(device))
    }

    pub(crate) fn sheet(&self, device: Option<&DeviceInfo>) -> Element {
        let mut sheet = Sheet::new();
        sheet.text(Label { size: 20.0, ..Label::BOLD }, 30.0, &self.model.title());
        sheet.text(Label::PLAIN, LINE, &capacity_heading(self));
        sheet.picture(map::pair(self, device, INNER));
        let planned: u128 = self.ledger.iter().map(|line| u128::from(line.bytes)).sum();
        let total = device.map_or(planned, |device| planned.max(device.total_bytes.into()));
        for line in self.ledger.iter().filter(|line| line.bytes > 0) {
            let of_pool = |pool: &Pool| match &line.name {
                LedgerItem::Pool(id) => pool.id == *id,
                LedgerItem::Local => !pool.owner.is_managed(),
                _ => false,
            };
            let pools: Vec<(usize, &Pool)> = self.pools.iter().enumerate().filter(|(_, pool)| of_pool(pool)).collect();
            let note = format!("{} ({})", line.note, source_name(line.source));
            let known = |fill: &str| Row {
                fill: fill.to_owned(),
                name: line.name.to_string(),
                bytes: line.bytes,
                note: note.clone(),
            };
            match pools.as_slice() {
                [] => sheet.row(&known(colours::of_line(&line.name)), total),
                [(place, pool)] if line.name != LedgerItem::Local => {
                    let layers = format!("{note}; layers {}", ranges(&pool.layers));
                    sheet.row(&Row { note: layers, ..known(&colours::of_place(*place)) }, total);
                }
                pools => {
                    sheet.row(&known("none"), total);
                    for (place, pool) in pools {
                        let note = format!("layers {}", ranges(&pool.layers));
                        let (fill, name) = (colours::of_place(*place), format!("· {}", pool.id));
                        sheet.row(&Row { fill, name, bytes: pool.bytes, note }, total);
                    }
                }
            }
        }
        if total > planned {
            let note = "outside the share that the budget takes of the device".to_owned();
            let bytes = u64::try_from(total - planned).unwrap_or(u64::MAX);
            let (fill, name) = (colours::GROUND.to_owned(), "left to others".to_owned());
            sheet.row(&Row { fill, name, bytes, note }, total);
        }
        sheet.drawn()
    }
}

impl Answer {
    /// A picture: a curve of capacity over context for each device, and a map of devices by layout, whose cells say how many
    /// sequences a layout holds with the model's own dtype of keys and values.
    pub fn svg(&self) -> String {
        format!("{}\n", self.sheet())
    }

    pub(crate) fn sheet(&self) -> Element {
        let mut sheet = Sheet::new();
        let asked = format!("{} sequences of {} tokens", separated(self.sequences), separated(self.context));
        sheet.text(Label { size: 20.0, ..Label::BOLD }, 30.0, &asked);
        sheet.text(Label::PLAIN, LINE, "The best layout of each device, then every layout; every number is assumed");
        sheet.picture(curves(self, INNER));
        sheet.picture(heat::draw(self, INNER));
        for (fill, text) in heat::HEAT {
            sheet.key(fill, text);
        }
        sheet.drawn()
    }
}

/// Sequences over their length for the best layout of each device.
pub(super) fn curves(answer: &Answer, width: f64) -> Element {
    let lines = answer.curves.iter().enumerate().map(|(style, curve)| Line {
        name: curve.name.clone(),
        points: curve.points.iter().filter(|point| point.1 > 0).map(|point| (point.0 as f64, point.1 as f64)).collect(),
        notes: Vec::new(),
        style,
    });
    let lines: Vec<Line> = lines.filter(|line| !line.points.is_empty()).collect();
    if lines.is_empty() {
        return Element::new("svg").with("height", 20).child(Label::PLAIN.draw(
            (0.0, 14.0),
            width,
            "no layout that was tried holds the weights",
        ));
    }
    let label = "Sequences at once over the length of each, for the best layout of each device";
    Chart::of_sequences(lines, label, answer.context).draw(width)
}

/// A line of the legend.
struct Row {
    fill: String,
    name: String,
    bytes: u64,
    note: String,
}

/// What is drawn from top to bottom.
struct Sheet {
    drawn: Vec<Element>,
    y: f64,
}

impl Sheet {
    const fn new() -> Self {
        Self { drawn: Vec::new(), y: 8.0 }
    }

    fn text(&mut self, label: Label, line: f64, text: &str) {
        for text in wrapped(text, INNER, label.size, label.bold) {
            self.y += line;
            self.drawn.push(label.draw((MARGIN, self.y), INNER, &text));
        }
    }

    fn picture(&mut self, picture: Element) {
        let height = picture.number("height").unwrap_or(0.0);
        self.drawn.push(picture.at("x", MARGIN).at("y", self.y + 16.0));
        self.y += height + 24.0;
    }

    fn row(&mut self, row: &Row, total: u128) {
        self.key(&row.fill, "");
        let y = self.y;
        self.drawn.push(Label::BOLD.draw((MARGIN + 20.0, y), 176.0, &row.name));
        let bytes = u128::from(row.bytes);
        for (right, room, value) in
            [(370.0, 150.0, row.bytes.to_string()), (450.0, 76.0, size(bytes)), (520.0, 66.0, percent(bytes, total))]
        {
            self.drawn.push(Label::END.draw((right, y), room, &value));
        }
        let room = WIDTH - MARGIN - NOTE;
        for (at, line) in wrapped(&row.note, room, 12.0, false).iter().enumerate() {
            self.y = y + LINE * at as f64;
            self.drawn.push(Label::PLAIN.draw((NOTE, self.y), room, line));
        }
    }

    fn key(&mut self, fill: &str, text: &str) {
        self.y += LINE + 4.0;
        let square = Element::new("rect").at("x", MARGIN).at("y", self.y - 11.0).with("width", 13).with("height", 13);
        if fill != "none" {
            self.drawn.push(square.with("fill", fill).with("stroke", colours::EDGE));
        }
        if !text.is_empty() {
            self.drawn.push(Label::PLAIN.draw((MARGIN + 20.0, self.y), INNER - 20.0, text));
        }
    }

    fn drawn(self) -> Element {
        let height = self.y + MARGIN;
        let widest = self.drawn.iter().map(|drawn| drawn.number("width").unwrap_or(0.0) + 2.0 * MARGIN);
        let width = widest.fold(WIDTH, f64::max);
        Element::file(width, height).children(self.drawn)
    }
}

impl Element {
    fn number(&self, name: &str) -> Option<f64> {
        self.attributes.iter().find(|(known, _)| *known == name).and_then(|(_, value)| value.parse().ok())
    }
}
