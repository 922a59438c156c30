//! Which devices hold what was asked for, for people and for tables elsewhere.

use cacheplan_handlers::DType;

use super::columns::{align, wrap};
use crate::budget::Dtypes;
use crate::engines::flags::vllm_serve;
use crate::export::file::quoted;
use crate::fit::{Answer, AtBest, Fit};

impl Answer {
    /// The best layout of each device and dtype, at most 100 columns wide; every number is assumed, as the weights' division
    /// and the activations are.
    pub fn table(&self) -> String {
        let (sequences, context) = (self.sequences, self.context);
        let asked = format!("{}: {sequences} sequences of {context} tokens; every number below is assumed", self.model);
        let mut text = format!("FIT{}\n", wrap(&asked, 5).trim_start_matches("   "));
        let mut rows = vec![["", "device", "holds", "room", "capped by", "most tokens/s", "an hour", "layout"]];
        let cells: Vec<[String; 8]> = self.best_of_each().into_iter().map(|fit| self.row(fit)).collect();
        rows.extend(cells.iter().map(|row| row.each_ref().map(String::as_str)));
        let rows: Vec<Vec<String>> = rows.iter().map(|row| row.map(str::to_owned).to_vec()).collect();
        text.extend(align(&rows, &[2, 3, 5, 6]).into_iter().map(|line| line + "\n"));
        match self.best() {
            Some(best) => {
                text.push_str("\nBEST\n");
                let model = quoted(&self.model);
                let price = best.per_million_tokens.zip(self.currency.as_ref());
                let price = price.map(|(price, currency)| {
                    format!("  {price:.4} {currency} an hour for each million tokens of context held\n")
                });
                text.push_str(&format!("  {} x {}{}\n", best.devices, best.device, self.margin(best)));
                text.push_str(&price.unwrap_or_default());
                text.extend(best.at_best.as_ref().map(|at_best| wrap(&self.at_best(at_best), 2)));
                let stated: String = self.stated.iter().map(|word| format!(" {}", quoted(word))).collect();
                text.push_str(&command(&format!("cacheplan plan {model} {}{stated}", best.plan_flags(self.context))));
                text.push_str(&command(&format!("vllm serve {model} {}", best.vllm_flags(self.context))));
            }
            None => text.push_str("\nnothing tried holds that; see what each is capped by, or raise --max-gpus\n"),
        }
        text
    }

    /// How much more than was asked for it holds.
    fn margin(&self, fit: &Fit) -> String {
        let more = 100 * u128::from(fit.sequences.saturating_sub(self.sequences)) / u128::from(self.sequences.max(1));
        format!(", holds {} of {} asked for: margin {more} %", fit.sequences, self.sequences)
    }

    /// The bound of speed in words.
    fn at_best(&self, best: &AtBest) -> String {
        let AtBest { alone_per_second: alone, tokens_per_second: all, sequences, bound_by, prompt_seconds, .. } = best;
        let price = best.per_million_tokens.zip(self.currency.as_ref());
        let price = price.map(|(price, currency)| format!(", {price:.3} {currency} a million"));
        format!(
            "at most {alone:.0} tokens/s for one sequence alone, {all:.0} for {sequences}{} ({bound_by} ends it), {prompt_seconds:.2} s to read a prompt of {}; a bound, which no engine reaches",
            price.unwrap_or_default(),
            self.context,
        )
    }

    fn row(&self, fit: &Fit) -> [String; 8] {
        let room = i128::from(fit.sequences) - i128::from(self.sequences);
        let price = fit.per_hour.zip(self.currency.as_ref());
        [
            if fit.holds { "yes" } else { "no" }.into(),
            format!("{} x {}", fit.devices, fit.device),
            fit.sequences.to_string(),
            format!("{room:+}"),
            fit.capped_by.clone(),
            fit.at_best.as_ref().map_or_else(|| "-".into(), |best| format!("{:.0}", best.tokens_per_second.ceil())),
            price.map_or_else(|| "-".into(), |(price, currency)| format!("{price:.2} {currency}")),
            fit.layout(),
        ]
    }

    /// Every layout that was tried, one a line.
    pub fn csv(&self) -> String {
        let mut text =
            "device,devices,tp,pp,dp,ep,engine,kv_dtype,state_dtype,holds,sequences,capped_by,outside_bytes,cache_bytes,per_hour,\
                        per_million_tokens,most_tokens_per_second,most_alone_per_second,least_prompt_seconds,\
                        least_per_million_tokens\n"
                .to_owned();
        for fit in &self.fits {
            let number = |number: Option<f64>| number.map(|number| number.to_string()).unwrap_or_default();
            let dtype = |dtype: Option<DType>| dtype.map(|dtype| dtype.to_string()).unwrap_or_default();
            let at_best = fit.at_best.as_ref();
            let cells = [
                cell(&fit.device),
                fit.devices.to_string(),
                fit.parallel.tp.to_string(),
                fit.parallel.pp.to_string(),
                fit.parallel.dp.to_string(),
                fit.parallel.ep.to_string(),
                cell(fit.engine.as_deref().unwrap_or_default()),
                dtype(fit.kv_dtype),
                dtype(fit.state_dtype),
                fit.holds.to_string(),
                fit.sequences.to_string(),
                cell(&fit.capped_by),
                fit.outside_bytes.to_string(),
                fit.cache_bytes.to_string(),
                number(fit.per_hour),
                number(fit.per_million_tokens),
                number(at_best.map(|best| best.tokens_per_second)),
                number(at_best.map(|best| best.alone_per_second)),
                number(at_best.map(|best| best.prompt_seconds)),
                number(at_best.and_then(|best| best.per_million_tokens)),
            ];
            text.push_str(&(cells.join(",") + "\n"));
        }
        text
    }
}

/// A command that can be pasted, at most 100 columns wide.
fn command(words: &str) -> String {
    let mut text = String::from(" ");
    let mut column = 1;
    for word in words.split_whitespace() {
        let width = word.chars().count() + 1;
        if column > 1 && column + width > 98 {
            text.push_str(" \\\n   ");
            column = 3;
        }
        text.push_str(&format!(" {word}"));
        column += width;
    }
    text + "\n"
}

impl Fit {
    /// The question about this row alone as flags of `cacheplan plan`.
    fn plan_flags(&self, context: u64) -> String {
        let count = if self.devices > 1 { format!("{}x", self.devices) } else { String::new() };
        format!("--device-memory {count}{} --max-seq-len {context} {}", self.device, self.flags())
    }

    /// The layout as flags of `vllm serve`.
    pub fn vllm_flags(&self, context: u64) -> String {
        let dtypes = Dtypes { kv: self.kv_dtype, ssm: self.state_dtype, ..Dtypes::default() };
        vllm_serve(self.parallel, dtypes, context, self.sequences)
    }
}

/// A cell that may have a comma or a quote.
fn cell(text: &str) -> String {
    if text.contains([',', '"', '\n']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text.to_owned() }
}
