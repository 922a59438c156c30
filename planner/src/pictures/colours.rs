//! One colour for each pool, which colour-blind readers tell apart (after Okabe and Ito); what is no cache is grey.

use crate::plan::{CachePlan, LedgerItem};

const POOLS: [(u8, u8, u8); 8] = [
    (0x56, 0xb4, 0xe9),
    (0xe6, 0x9f, 0x00),
    (0x00, 0x9e, 0x73),
    (0xcc, 0x79, 0xa7),
    (0xf0, 0xe4, 0x42),
    (0xd5, 0x5e, 0x00),
    (0x00, 0x72, 0xb2),
    (0xa6, 0x76, 0x1d),
];

/// Text and thin lines, where no theme says otherwise.
pub(crate) const INK: &str = "#1b1b1b";
/// Around areas.
pub(crate) const EDGE: &str = "#4a4a4a";
/// Behind lines.
pub(crate) const GRID: &str = "#c4c8cc";
pub(crate) const GROUND: &str = "#ffffff";

/// Lines of a chart, which dashes tell apart too. A theme may have others for their classes.
pub(crate) const LINES: [(&str, &str, &str); 8] = [
    ("line-1", "#0b62a4", ""),
    ("line-2", "#b35900", "8 3"),
    ("line-3", "#00795a", "2 3"),
    ("line-4", "#a2407d", "10 3 2 3"),
    ("line-5", "#5d5d5d", "4 2"),
    ("line-6", "#7a6a00", "12 4"),
    ("line-7", "#1b1b1b", "1 2"),
    ("line-8", "#8c2d04", "6 2 2 2 2 2"),
];

/// The colour of a pool by its place in the plan; after the first eight the same lighter, then darker, and so on.
pub(crate) fn of_place(place: usize) -> String {
    let (red, green, blue) = POOLS[place % POOLS.len()];
    let round = (place / POOLS.len()).min(60) as i32;
    let part = |part: u8| {
        let part = f64::from(part);
        let mixed = match round {
            0 => part,
            round if round % 2 == 1 => 255.0 - (255.0 - part) * 0.5 * 0.85f64.powi(round / 2),
            round => part * 0.6 * 0.85f64.powi(round / 2 - 1),
        };
        mixed.round() as u8
    };
    format!("#{:02x}{:02x}{:02x}", part(red), part(green), part(blue))
}

pub(crate) fn of_pool(plan: &CachePlan, id: &str) -> Option<String> {
    plan.pools.iter().position(|pool| pool.id == id).map(of_place)
}

/// What the ledger has besides pools.
pub(crate) const fn of_line(line: &LedgerItem) -> &'static str {
    match line {
        LedgerItem::Weights | LedgerItem::Resident => "#a8a8a8",
        LedgerItem::DraftWeights => "#8f8f8f",
        LedgerItem::Activations => "#c4c4c4",
        LedgerItem::Context => "#d6d6d6",
        LedgerItem::Nccl => "#cfcfcf",
        LedgerItem::Graphs => "#bdbdbd",
        LedgerItem::Unused => "#f4f4f4",
        LedgerItem::HostTier | LedgerItem::Reserve | LedgerItem::Margin | LedgerItem::Pool(_) | LedgerItem::Local => {
            "#dddddd"
        }
    }
}

/// Black or white, whichever reads better on a fill.
pub(crate) fn on(fill: &str) -> &'static str {
    let part = |at: usize| {
        let part = fill.get(at..at + 2).and_then(|digits| u8::from_str_radix(digits, 16).ok()).unwrap_or(255);
        let part = f64::from(part) / 255.0;
        if part <= 0.04045 { part / 12.92 } else { ((part + 0.055) / 1.055).powf(2.4) }
    };
    let luminance = 0.2126 * part(1) + 0.7152 * part(3) + 0.0722 * part(5);
    if luminance > 0.179 { "#000000" } else { "#ffffff" }
}
