//! The plan as a picture: one bar of the device's bytes, and a legend that names each part.

use cacheplan_files::Shown;

use super::{owner_name, ranges, source_name};
use crate::size::ByteSize;
use crate::{CachePlan, LedgerItem, Owner, Unit};

/// Width of the picture and its margin, in pixels.
const WIDTH: f64 = 1000.0;
const MARGIN: f64 = 24.0;
const BAR_TOP: f64 = 92.0;
const BAR_HEIGHT: f64 = 120.0;
const LEGEND_TOP: f64 = BAR_TOP + BAR_HEIGHT + 64.0;
const ROW: f64 = 26.0;
const SECOND_LINE: f64 = 16.0;
const NOTE_LEFT: f64 = 506.0;

/// A share of the bar below this has no block of its own: it would be thinner than eight pixels.
const SMALLEST_SHARE: f64 = 8.0 / (WIDTH - 2.0 * MARGIN);

/// About how wide a letter is: no font is at hand to measure with.
const LETTER: f64 = 7.6;
const NOTE_LETTER: f64 = 6.7;

/// What a part of the bar is, hence its colour.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Class {
    Paged,
    State,
    Local,
    Outside,
    Unused,
}

impl Class {
    const ALL: [(Self, &'static str); 5] = [
        (Self::Paged, "kv_cache_manager"),
        (Self::State, "mamba_cache_manager"),
        (Self::Local, "local"),
        (Self::Outside, "besides caches"),
        (Self::Unused, "unused"),
    ];

    /// Fills that stay apart for colour-blind readers (after Okabe and Ito), light enough for black text.
    const fn fill(self) -> &'static str {
        match self {
            Self::Paged => "#56b4e9",
            Self::State => "#e69f00",
            Self::Local => "#cc79a7",
            Self::Outside => "#c8c8c8",
            Self::Unused => "#f4f4f4",
        }
    }
}

/// A stretch of the bar.
struct Part {
    class: Class,
    name: String,
    bytes: u64,
    /// What it is, for the legend.
    note: String,
    /// Its layers, below; empty for what has none.
    layers: String,
}

impl Part {
    fn row_height(&self) -> f64 {
        if self.layers.is_empty() { ROW } else { ROW + SECOND_LINE }
    }
}

impl CachePlan {
    /// A memory map as SVG, 1000 pixels wide: every line of the ledger in proportion, small ones together.
    pub fn svg(&self) -> String {
        let parts = parts(self);
        let total: u128 = parts.iter().map(|part| u128::from(part.bytes)).sum();
        let height = LEGEND_TOP + parts.iter().map(Part::row_height).sum::<f64>();
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" \
             height=\"{height}\" font-family=\"Helvetica, Arial, sans-serif\" font-size=\"13\">\n\
             <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n"
        );
        svg.push_str(&heading(self, total));
        svg.push_str(&bar(&parts, total));
        svg.push_str(&legend(&parts, total));
        svg.push_str("</svg>\n");
        svg
    }
}

/// The lines of the ledger that hold bytes, in its order.
fn parts(plan: &CachePlan) -> Vec<Part> {
    let lines = plan.ledger.iter().filter(|line| line.bytes > 0);
    lines
        .map(|line| {
            let pool = match &line.name {
                LedgerItem::Pool(id) => plan.pool(id),
                _ => None,
            };
            let class = match (pool.map(|pool| pool.owner), &line.name) {
                (Some(Owner::MambaCacheManager), _) => Class::State,
                (Some(_), _) => Class::Paged,
                (None, LedgerItem::Local) => Class::Local,
                (None, LedgerItem::Unused) => Class::Unused,
                (None, _) => Class::Outside,
            };
            let note = pool.map_or_else(
                || format!("{} ({})", line.note, source_name(line.source)),
                |pool| {
                    let unit = match (pool.unit, pool.tokens_per_block) {
                        (Unit::Block, Some(tokens)) => format!("blocks of {tokens} tokens"),
                        (Unit::Block, None) => "blocks".into(),
                        (Unit::Slot, _) => if pool.checkpoints_of.is_some() { "checkpoints" } else { "slots" }.into(),
                        (Unit::Fixed, _) => "tensor".into(),
                    };
                    let each = ByteSize(pool.unit_bytes);
                    format!("{} {unit}, {each} each, {}", pool.units, owner_name(pool.owner))
                },
            );
            let layers = pool.map(|pool| ranges(&pool.layers)).filter(|layers| !layers.is_empty());
            let layers = layers.map(|layers| format!("layers {layers}")).unwrap_or_default();
            Part { class, name: line.name.to_string(), bytes: line.bytes, note, layers }
        })
        .collect()
}

fn heading(plan: &CachePlan, total: u128) -> String {
    let title = format!("{}: {} in {} layers", plan.model.model_type, size(total), plan.model.layers);
    let capacity = &plan.capacity;
    let tokens = capacity.tokens.map(|tokens| format!(", {tokens} tokens in pages")).unwrap_or_default();
    let host = plan.host.as_ref();
    let host = host.map(|host| format!("; {} more on the host in {}", host.sequences, ByteSize(host.bytes)));
    let facts = format!(
        "{} sequences of {} tokens{tokens}, capped by {}; grouping {}{}",
        capacity.sequences,
        capacity.tokens_per_sequence,
        capacity.capped_by,
        plan.policy,
        host.unwrap_or_default()
    );
    let mut text = label(MARGIN, 36.0, "font-size=\"20\" font-weight=\"bold\"", &title, WIDTH - 2.0 * MARGIN);
    text.push_str(&label(MARGIN, 62.0, "", &facts, WIDTH - 2.0 * MARGIN));
    text
}

/// The parts side by side; those too small for a block of their own share one at the end, which says how many they are.
fn bar(parts: &[Part], total: u128) -> String {
    let share = |bytes: u128| if total == 0 { 0.0 } else { bytes as f64 / total as f64 };
    let (small, large): (Vec<&Part>, Vec<&Part>) =
        parts.iter().partition(|part| share(part.bytes.into()) < SMALLEST_SHARE);
    let small_bytes: u128 = small.iter().map(|part| u128::from(part.bytes)).sum();
    // The shared block is never thinner than a block may be; the others give way.
    let small_share = if small.is_empty() { 0.0 } else { share(small_bytes).max(SMALLEST_SHARE) };
    let room = (WIDTH - 2.0 * MARGIN) * (1.0 - small_share);
    let large_bytes = total - small_bytes;
    let mut x = MARGIN;
    let mut text = String::new();
    for part in large {
        let width = room * part.bytes as f64 / large_bytes as f64;
        let tip = format!("{}: {} bytes", part.name, part.bytes);
        text.push_str(&block(x, width, part.class.fill(), &tip));
        if width >= 60.0 {
            let room = width - 12.0;
            text.push_str(&label(x + 6.0, BAR_TOP + 24.0, "font-weight=\"bold\"", &part.name, room));
            text.push_str(&label(x + 6.0, BAR_TOP + 44.0, "", &size(part.bytes.into()), room));
            text.push_str(&label(x + 6.0, BAR_TOP + 64.0, "", &percent(part.bytes, total), room));
        }
        x += width;
    }
    if !small.is_empty() {
        let names: Vec<&str> = small.iter().map(|part| part.name.as_str()).collect();
        let width = (WIDTH - 2.0 * MARGIN) * small_share;
        text.push_str(&block(x, width, "#707070", &format!("{}: {small_bytes} bytes", names.join(", "))));
        let note = format!("{}: {}", names.join(", "), size(small_bytes));
        // Right-aligned below the end of the bar, where the block is.
        text.push_str(&format!(
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>\n",
            WIDTH - MARGIN,
            BAR_TOP + BAR_HEIGHT + 20.0,
            escape(&cut(&note, (WIDTH - 2.0 * MARGIN) / 2.0))
        ));
    }
    text
}

fn block(x: f64, width: f64, fill: &str, tip: &str) -> String {
    format!(
        "<rect x=\"{x:.1}\" y=\"{BAR_TOP}\" width=\"{width:.1}\" height=\"{BAR_HEIGHT}\" fill=\"{fill}\" \
         stroke=\"#333333\"><title>{}</title></rect>\n",
        escape(tip)
    )
}

/// A key to the colours, then each part with its exact bytes.
fn legend(parts: &[Part], total: u128) -> String {
    let mut text = String::new();
    let mut x = MARGIN;
    for (class, name) in Class::ALL.into_iter().filter(|(class, _)| parts.iter().any(|part| part.class == *class)) {
        text.push_str(&swatch(x, BAR_TOP - 18.0, class));
        text.push_str(&label(x + 18.0, BAR_TOP - 8.0, "font-size=\"11\"", name, WIDTH));
        x += 18.0 + LETTER * name.len() as f64 + 16.0;
    }
    let mut y = LEGEND_TOP;
    for part in parts {
        text.push_str(&swatch(MARGIN, y - 11.0, part.class));
        text.push_str(&label(MARGIN + 20.0, y, "font-weight=\"bold\"", &part.name, 180.0));
        for (right, value) in
            [(340.0, part.bytes.to_string()), (430.0, size(part.bytes.into())), (490.0, percent(part.bytes, total))]
        {
            text.push_str(&format!("<text x=\"{right}\" y=\"{y}\" text-anchor=\"end\">{value}</text>\n"));
        }
        let most = ((WIDTH - MARGIN - NOTE_LEFT) / NOTE_LETTER) as usize;
        for (line, row) in [(&part.note, 0.0), (&part.layers, SECOND_LINE)] {
            let line = escape(&shorten(line, most));
            text.push_str(&format!("<text x=\"{NOTE_LEFT}\" y=\"{}\" font-size=\"12\">{line}</text>\n", y + row));
        }
        y += part.row_height();
    }
    text
}

fn swatch(x: f64, y: f64, class: Class) -> String {
    format!(
        "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"12\" height=\"12\" fill=\"{}\" stroke=\"#333333\"/>\n",
        class.fill()
    )
}

/// Text from `x` that is cut so as to end within `room` pixels.
fn label(x: f64, y: f64, style: &str, text: &str, room: f64) -> String {
    format!("<text x=\"{x:.1}\" y=\"{y:.1}\" {style}>{}</text>\n", escape(&cut(text, room)))
}

fn cut(text: &str, room: f64) -> String {
    shorten(text, (room / LETTER) as usize)
}

fn shorten(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    text.chars().take(most.saturating_sub(1)).chain(['…']).collect()
}

fn size(bytes: u128) -> String {
    ByteSize(u64::try_from(bytes).unwrap_or(u64::MAX)).to_string()
}

/// `12.3%`.
fn percent(bytes: u64, total: u128) -> String {
    let tenths = (u128::from(bytes) * 1000 + total / 2).checked_div(total).unwrap_or(0);
    format!("{}.{}%", tenths / 10, tenths % 10)
}

fn escape(text: &str) -> String {
    Shown(text).to_string().replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
