//! What engines allocate, as tables of at most 100 columns.

use super::columns::{align, wrap};
use super::markdown;
use crate::compare::Comparison;
use crate::engines::EnginePrediction;
use crate::size::ByteSize;

impl EnginePrediction {
    /// Name, number and size of each quantity that the engine has.
    fn rows(&self) -> Vec<Vec<String>> {
        let counts = [
            ("block_size", self.block_size),
            ("groups", self.groups),
            ("group_size", self.group_size),
            ("num_blocks", self.num_blocks),
            ("padding_layers", self.padding_layers),
            ("blocks_per_request", self.blocks_per_request),
            ("tokens", self.tokens),
            ("window_tokens", self.window_tokens),
            ("state_slots", self.state_slots),
            ("sequences", Some(self.sequences)),
        ];
        let bytes = [
            ("page_bytes", self.page_bytes),
            ("state_page_bytes", self.state_page_bytes),
            ("kv_bytes", self.kv_bytes),
            ("draft_kv_bytes", self.draft_kv_bytes),
            ("state_bytes", self.state_bytes),
            ("ssm_bytes", self.ssm_bytes),
            ("conv_bytes", self.conv_bytes),
            ("speculation_bytes", self.speculation_bytes),
            ("speculation_conv_bytes", self.speculation_conv_bytes),
            ("wasted_bytes", Some(self.wasted_bytes)),
        ];
        let counts = counts.into_iter().filter_map(|(name, count)| Some((name, count?, String::new())));
        let bytes = bytes.into_iter().filter_map(|(name, bytes)| Some((name, bytes?, ByteSize(bytes?).to_string())));
        let concurrency =
            self.concurrency.map(|times| vec!["concurrency".into(), format!("{times:.2}"), String::new()]);
        let numbers = counts.chain(bytes).map(|(name, number, size)| vec![name.into(), number.to_string(), size]);
        numbers.chain(concurrency).collect()
    }

    /// The prediction as Markdown: a table of its quantities and a list of its rules.
    pub fn markdown(&self) -> String {
        let mut text = format!("## {} {} would allocate\n\n", self.name, self.version);
        text.push_str(&markdown::table(&["", "", "size"], "lrr", self.rows().into_iter()));
        text.push('\n');
        self.notes.iter().for_each(|note| text.push_str(&format!("- {}\n", markdown::cell(note))));
        text
    }

    /// The prediction as a text table, one line per quantity that the engine has.
    pub fn table(&self) -> String {
        let mut text = format!("ENGINE  {} {}\n", self.name, self.version);
        for row in align(&self.rows(), &[1, 2]) {
            text.push_str(&row);
            text.push('\n');
        }
        for note in &self.notes {
            text.push_str(&wrap(note, 2));
        }
        text
    }
}

impl Comparison {
    /// Comparisons as a text table, at most 100 columns wide, with what costs each engine its bytes, and which of its rules make a
    /// version differ.
    pub fn table(comparisons: &[Self]) -> String {
        let heading = ["engine", "bytes", "ours", "engine's", "ratio", "our waste", "its waste"];
        let mut rows = vec![heading.map(String::from).to_vec()];
        rows.extend(comparisons.iter().map(|row| {
            vec![
                format!("{} {}", row.engine, row.version),
                ByteSize(row.bytes).to_string(),
                row.sequences.to_string(),
                row.engine_sequences.to_string(),
                ratio(row.sequences, row.engine_sequences),
                ByteSize(row.wasted_bytes).to_string(),
                ByteSize(row.engine_wasted_bytes).to_string(),
            ]
        }));
        let mut lines = align(&rows, &[1, 2, 3, 4, 5, 6]).into_iter();
        let mut text = lines.next().map(|heading| heading + "\n").unwrap_or_default();
        for (line, row) in lines.zip(comparisons) {
            text.push_str(&line);
            text.push('\n');
            for why in &row.why {
                text.push_str(&wrap(why, 6));
            }
        }
        for change in comparisons.iter().flat_map(|row| &row.changes) {
            text.push_str(&wrap(change, 0));
        }
        text
    }
}

/// Two decimals, in integers.
fn ratio(ours: u64, theirs: u64) -> String {
    if theirs == 0 {
        return "-".into();
    }
    let hundredths = (u128::from(ours) * 100 + u128::from(theirs) / 2) / u128::from(theirs);
    format!("{}.{:02}", hundredths / 100, hundredths % 100)
}
