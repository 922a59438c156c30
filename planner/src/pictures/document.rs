//! One file of HTML with the pictures and their numbers: it asks for nothing, runs nothing, and prints.

use cacheplan_transforms::layers::LayerSpec;

use super::element::{Element, table};
use super::{capacity, capacity_heading, file, heat, map, size, strip};
use crate::curves::Curves;
use crate::device::DeviceInfo;
use crate::fit::Answer;
use crate::plan::CachePlan;
use crate::render::{owner_name, ranges};
use crate::size::separated;

/// The rules of the page for pictures, and those of a document around them.
const STYLE: &str = concat!(include_str!("pictures.css"), include_str!("document.css"));

/// Pictures have letters of one size on wide screens and on narrow ones.
const WIDTHS: [(&str, f64); 2] = [("wide", 940.0), ("narrow", 350.0)];

impl CachePlan {
    /// The plan as a document; `layers` are the model's, `curves` those of the same request.
    pub fn html(&self, device: Option<&DeviceInfo>, layers: &[LayerSpec], curves: &Curves) -> String {
        let title = format!("{} · cacheplan", self.model.title());
        let pools = self.pools.iter().map(|pool| {
            let unit = map::units(pool);
            let owner = owner_name(pool.owner).to_owned();
            let (units, each) = (separated(pool.units), separated(pool.unit_bytes));
            vec![pool.id.clone(), owner, units, unit, each, size(pool.bytes.into()), ranges(&pool.layers)]
        });
        let head = ["pool", "owner", "units", "", "bytes each", "size", "layers"];
        let pools = table("Every pool", &head, &[2, 4, 5], &pools.collect::<Vec<_>>());
        let sections = [
            section(
                "Memory of one GPU",
                [drawn(|width| map::pair(self, device, width)), scrolls(map::numbers(self)), scrolls(pools)],
            ),
            section("Layers", [drawn(|width| strip::draw(self, layers, width))]),
            section(
                "Capacity over context",
                [
                    drawn(|width| capacity::draw(curves, self, width)),
                    scrolls(capacity::numbers(curves)),
                    scrolls(capacity::engines(curves)),
                ],
            ),
        ];
        document(&title, &self.model.title(), &capacity_heading(self), sections)
    }
}

impl Answer {
    /// What fits as a document.
    pub fn html(&self) -> String {
        let title = format!("{} sequences of {} tokens", separated(self.sequences), separated(self.context));
        let sections = [
            section("Capacity over context", [drawn(|width| file::curves(self, width))]),
            section(
                "Devices by layout",
                [
                    drawn(|width| Element::new("div").with("class", "scrolls").child(heat::draw(self, width))),
                    heat::meaning(),
                    scrolls(self.numbers()),
                ],
            ),
        ];
        let said = "The best layout of each device, then of each number of devices; every number is assumed.";
        document(&format!("{title} · cacheplan"), &title, said, sections)
    }

    fn numbers(&self) -> Element {
        let mut head = vec!["device", "devices", "layout", "sequences", "capped by", "for caches"];
        head.extend(self.currency.is_some().then_some("an hour"));
        let rows = self.best_of_each().into_iter().map(|fit| {
            let (devices, sequences) = (fit.devices.to_string(), separated(fit.sequences));
            let (cap, bytes) = (fit.capped_by_words.clone(), size(fit.cache_bytes.into()));
            let mut row = vec![fit.device.clone(), devices, fit.layout(), sequences, cap, bytes];
            row.extend(
                self.currency.is_some().then(|| fit.per_hour.map(|price| format!("{price:.2}")).unwrap_or_default()),
            );
            row
        });
        table("The best layout of each device", &head, &[1, 3, 5, 6], &rows.collect::<Vec<_>>())
    }
}

fn document(title: &str, heading: &str, said: &str, sections: impl IntoIterator<Item = Element>) -> String {
    let meta = |name: &str, content: &str| Element::new("meta").with("name", name).with("content", content);
    // Not even a browser that were told to would ask anybody, or run anything.
    let policy = Element::new("meta").with("http-equiv", "Content-Security-Policy");
    let head = Element::new("head").children([
        Element::new("meta").with("charset", "utf-8"),
        policy.with("content", "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"),
        meta("viewport", "width=device-width, initial-scale=1"),
        meta("color-scheme", "light dark"),
        Element::new("title").text(title),
        Element::style(STYLE),
    ]);
    let header = Element::new("header").child(Element::new("h1").text(heading)).child(Element::new("p").text(said));
    let made = format!("Made by cacheplan {}.", env!("CARGO_PKG_VERSION"));
    let body = Element::new("body").child(header).child(Element::new("main").children(sections));
    let html = Element::new("html").with("lang", "en").child(head);
    let html = html.child(body.child(Element::new("footer").text(&made)));
    format!("<!doctype html>\n{html}\n")
}

fn section(title: &str, parts: impl IntoIterator<Item = Element>) -> Element {
    Element::new("section").child(Element::new("h2").text(title)).children(parts)
}

/// A picture for each kind of screen, of which one is shown.
fn drawn(draw: impl Fn(f64) -> Element) -> Element {
    let kinds = WIDTHS.map(|(class, width)| Element::new("div").with("class", class).child(draw(width)));
    Element::new("div").children(kinds)
}

/// A table may be wider than the screen.
fn scrolls(table: Element) -> Element {
    Element::new("div").with("class", "scrolls").with("tabindex", 0).child(table)
}
