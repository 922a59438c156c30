//! Metrics as text, in the format that Prometheus reads.

use std::fmt::Write as _;

/// Families of metrics, each with its samples below it.
#[derive(Clone, Debug, Default)]
pub struct Exposition {
    text: String,
    name: String,
}

impl Exposition {
    /// Begins the family `cacheplan_` and `name`, of a `kind` such as `gauge`, `counter` or `histogram`.
    pub fn family(&mut self, name: &str, kind: &str, help: &str) -> &mut Self {
        self.name = format!("cacheplan_{name}");
        let _ = writeln!(self.text, "# HELP {0} {help}\n# TYPE {0} {kind}", self.name);
        self
    }

    /// A sample of the family.
    pub fn sample(&mut self, labels: &[(&str, &str)], value: f64) -> &mut Self {
        self.line("", labels, value);
        self
    }

    /// A histogram of the family: how many were counted up to each bound, and the sum of all.
    pub fn histogram(&mut self, bounds: &[f64], counts: &[u64], sum: f64) -> &mut Self {
        let mut below = 0;
        for (place, count) in counts.iter().enumerate() {
            below += count;
            let bound = bounds.get(place).map_or_else(|| "+Inf".to_owned(), f64::to_string);
            self.line("_bucket", &[("le", &bound)], below as f64);
        }
        self.line("_sum", &[], sum);
        self.line("_count", &[], below as f64);
        self
    }

    /// The text.
    #[must_use]
    pub fn into_text(self) -> String {
        self.text
    }

    fn line(&mut self, suffix: &str, labels: &[(&str, &str)], value: f64) {
        let _ = write!(self.text, "{}{suffix}", self.name);
        for (place, (label, value)) in labels.iter().enumerate() {
            let opening = if place == 0 { '{' } else { ',' };
            let _ = write!(self.text, "{opening}{label}=\"{}\"", escaped(value));
        }
        let _ = writeln!(self.text, "{} {value}", if labels.is_empty() { "" } else { "}" });
    }
}

/// A label value with what the format reserves escaped.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}
