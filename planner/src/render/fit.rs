//! Which devices hold what was asked for, for people and for tables elsewhere.

use cacheplan_handlers::DType;

use super::columns::{WIDTH, align, wrap};
use crate::engines::EngineSpec;
use crate::export::file::quoted;
use crate::fit::{Answer, AtBest, FewerBits, Fit, cost, money};
use crate::size::{ByteSize, sequences};

impl Answer {
    /// The best layout of each device that has a price, or of each where none holds that has, within 80 columns as far as names allow, and never above 100; every number is
    /// assumed, as the weights' division and the activations are.
    pub fn table(&self) -> String {
        let (asked_for, context) = (sequences(self.sequences), self.context);
        let spare = if self.margin > 0 { format!(" and room for {} % more", self.margin) } else { String::new() };
        let asked = format!("{}: {asked_for} of {context} tokens{spare}; every number below is assumed", self.model);
        let mut text = format!("FIT{}\n", wrap(&asked, 5).trim_start_matches("   "));
        let mut head = vec!["", "device", "holds", "capped by", "most tok/s", "layout"];
        if let Some(currency) = &self.currency {
            head.insert(5, if currency.is_empty() { "an hour" } else { currency });
        }
        let mut rows = vec![head.into_iter().map(str::to_owned).collect::<Vec<_>>()];
        let is_priced = |fit: &Fit| fit.per_hour.is_some();
        // Where something that holds has a price, what has none is no answer to what is cheapest.
        let folds = self.best().is_some_and(is_priced);
        let (shown, unpriced): (Vec<&Fit>, Vec<&Fit>) =
            self.best_of_devices().into_iter().partition(|fit| !folds || is_priced(fit));
        rows.extend(shown.into_iter().map(|fit| self.row(fit)));
        text.extend(
            align(&rows, if self.currency.is_some() { &[2, 4, 5] } else { &[2, 4] })
                .into_iter()
                .map(|line| line + "\n"),
        );
        text.push_str(&self.none());
        text.push_str(&without_prices(&unpriced));
        text.push_str(&self.whose());
        match self.best() {
            Some(best) => text.push_str(&self.details(best)),
            None => {
                text.push('\n');
                self.without_best().iter().for_each(|said| text.push_str(&wrap(said, 0)));
            }
        }
        text
    }

    /// Whose rules the rows go by, where there are several.
    fn whose(&self) -> String {
        if self.fits.iter().all(|fit| fit.engine.is_none()) {
            return String::new();
        }
        let states = self.states.map(|dtype| format!(", with states in {dtype}")).unwrap_or_default();
        wrap(
            &format!(
                "rows with an engine: what its own command gets, by its defaults; others: the plan's own pools{states}"
            ),
            5,
        )
    }

    /// Why nothing surely holds what was asked for, and what would.
    fn without_best(&self) -> Vec<String> {
        let asked: Vec<&Fit> = self.fits.iter().filter(|fit| fit.engine.is_some()).collect();
        let tried = if asked.is_empty() { "nothing tried" } else { "none of the engines" };
        let mut said = Vec::new();
        // Where a sequence is too long for an engine no device helps.
        if let Some(fit) = asked.first()
            && asked.iter().all(|fit| fit.longest.is_some())
        {
            let engine = fit.engine.as_deref().unwrap_or_default();
            let cap = &fit.capped_by;
            said.push(format!(
                "{engine} gives no more than the {cap} that the model was made for; ask for no longer --context"
            ));
            return said;
        }
        let may = self.fits.iter().find(|fit| fit.may_hold && (fit.engine.is_some() || asked.is_empty()));
        said.push(match may {
            Some(fit) => format!(
                "{tried} surely holds that; {} x {}, {}, holds {}, as what it finds at its start decides: more devices (--max-gpus), or a larger share of them, would surely",
                fit.devices,
                fit.device,
                fit.layout(),
                fit.held()
            ),
            None if self.fewer_bits.is_empty() => format!("{tried} holds that; raise --max-gpus, or ask for less"),
            None => {
                let bits = self.fewer_bits.iter();
                let bits: Vec<String> =
                    bits.map(|fewer| format!("in {} bits some {}", fewer.bits, ByteSize(fewer.weights_bytes))).collect();
                format!(
                    "{tried} holds that; raise --max-gpus, or state with --weights what quantised ones take: {}",
                    bits.join(", ")
                )
            }
        });
        said.extend(self.fewer_bits());
        said
    }

    /// What weights of fewer bits would need, where that is less.
    fn fewer_bits(&self) -> Vec<String> {
        // Fewer bits lose more, so that they are offered where they cost less than more of them.
        let costs = |fewer: &FewerBits| fewer.fit.as_ref().map(cost);
        let is_least = |at: usize| {
            self.fewer_bits[..at].iter().all(|more| {
                costs(more).is_none_or(|more| costs(&self.fewer_bits[at]).is_some_and(|least| least < more))
            })
        };
        let said = |fewer: &FewerBits| {
            let fit = fewer.fit.as_ref()?;
            let price = fit.per_hour.map(|price| format!(", {}", self.money(price, 2, "an hour"))).unwrap_or_default();
            let weights = ByteSize(fewer.weights_bytes);
            let (bits, layout, held) = (fewer.bits, fit.layout(), fit.held());
            Some(format!(
                "with {bits}-bit weights, assumed {weights}: {} x {}, {layout}, holds {held}{price}; --weights states them",
                fit.devices, fit.device
            ))
        };
        let each = self.fewer_bits.iter().enumerate().filter(|(at, _)| is_least(*at));
        each.filter_map(|(_, fewer)| said(fewer)).collect()
    }

    /// The devices that hold nothing, in sentences by what ends it.
    fn none(&self) -> String {
        let (full, left): (Vec<&Fit>, Vec<&Fit>) = self.too_small().into_iter().partition(|fit| fit.cache_bytes == 0);
        let listed = |fits: Vec<&Fit>, why: String| {
            let names: Vec<String> = fits.iter().map(|fit| format!("{} x {}", fit.devices, fit.device)).collect();
            let listed = wrap(&format!("{}: hold none, {why}", names.join(", ")), 5);
            if fits.is_empty() { String::new() } else { format!("no{}", &listed[2..]) }
        };
        let too_long = format!("what weights and a step leave is less than one sequence of {} tokens", self.context);
        listed(full, "weights and a step take too much".to_owned()) + &listed(left, too_long)
    }

    /// The best layout, and the commands that plan and serve it.
    fn details(&self, best: &Fit) -> String {
        let price = best.per_hour.map(|hour| {
            let each = hour / self.sequences.max(1) as f64;
            let each = self.money(each, 4, &format!("an hour for each of the {}", sequences(self.sequences)));
            let each = if self.sequences > 1 { format!("; {each}") } else { String::new() };
            wrap(&(self.money(hour, 2, "an hour") + &each), 2)
        });
        let why = if best.per_hour.is_some() { "the cheapest that holds" } else { "the least memory that holds" };
        let best_of = format!("{} x {}, {why}{}", best.devices, best.device, self.margin(best));
        let mut text = format!("\nBEST\n{}", wrap(&best_of, 2));
        text.push_str(&wrap(&self.ending(best), 2));
        text.push_str(&price.unwrap_or_default());
        text.extend(self.next_cheaper(best).map(|said| wrap(&said, 2)));
        // A price may be lower for what is stored in fewer bits, which costs precision.
        let is_whole = |fit: &&Fit| fit.holds && fit.changed_dtypes() == 0 && fit.engine == best.engine;
        let whole = self.fits.iter().find(is_whole).filter(|_| best.changed_dtypes() > 0);
        text.extend(whole.map(|whole| {
            let price = whole.per_hour.map(|hour| format!(", {}", self.money(hour, 2, "an hour"))).unwrap_or_default();
            let held = format!("holds {}{price}", whole.held());
            let said = format!(
                "with caches in the model's own dtypes: {} x {}, {}, {held}",
                whole.devices,
                whole.device,
                whole.layout()
            );
            wrap(&said, 2)
        }));
        self.fewer_bits().iter().for_each(|said| text.push_str(&wrap(said, 2)));
        text.extend(best.at_best.as_ref().map(|at_best| wrap(&self.at_best(at_best), 2)));
        if let Some(told) = &self.command {
            let words = self.stated.iter().map(String::as_str).chain(["--"]).chain(told.iter().map(String::as_str));
            let words = words.map(|word| quoted(word).into_owned()).collect();
            return text + &lines(format!("cacheplan plan --device {}", best.counted()), words);
        }
        text.push_str(&self.asked(best));
        text.push_str(&self.served(best));
        text
    }

    /// The command that asks about a row alone: of an engine's row with the engine's own command, as the row was asked.
    fn asked(&self, best: &Fit) -> String {
        let engine = best.engine.as_deref().and_then(|engine| engine.parse::<EngineSpec>().ok());
        let Some((engine, told)) = engine.and_then(|engine| Some((engine, self.told(best, engine)?))) else {
            let named = [&self.model].into_iter().chain(&self.stated);
            return command("cacheplan plan", named, &best.plan_flags(self.context));
        };
        let mut words = self.stated_of_files();
        if engine.version != engine.engine.newest() {
            words.extend(["--engine-version".to_owned(), engine.version_name()]);
        }
        // What is piped in has no name.
        if self.model == "-" {
            words.extend(["--model-config", "-"].map(str::to_owned));
        }
        let name = if self.model == "-" { "MODEL" } else { &self.model };
        words.push("--".to_owned());
        words.extend(engine.program().split_whitespace().chain([name]).map(|word| quoted(word).into_owned()));
        words.extend(told.split_whitespace().map(str::to_owned));
        lines(format!("cacheplan plan --device {}", best.counted()), words)
    }

    /// What is stated of the model's files; dtypes are told the engine.
    fn stated_of_files(&self) -> Vec<String> {
        let pairs = self.stated.chunks(2).filter(|pair| !pair[0].ends_with("-dtype"));
        pairs.flatten().map(|word| quoted(word).into_owned()).collect()
    }

    /// An amount, in the currency where one is stated.
    fn money(&self, amount: f64, digits: usize, of: &str) -> String {
        format!("{} {of}", money(amount, digits, self.currency.as_deref().unwrap_or_default()))
    }

    /// The command that serves it, to be pasted; a description without weights is no model that can be served.
    fn served(&self, best: &Fit) -> String {
        let is_gguf = self.model.to_lowercase().ends_with(".gguf");
        let usual = if is_gguf { "llama.cpp" } else { "vllm" };
        let Ok(engine) = best.engine.as_deref().unwrap_or(usual).parse::<EngineSpec>() else { return String::new() };
        let takes_files = engine.engine.name() == "llama.cpp";
        if !takes_files && (is_gguf || best.is_integrated()) {
            return String::new();
        }
        let Some(flags) = self.told(best, engine) else { return String::new() };
        let (program, model) = (engine.program(), self.model.as_str());
        let folder = if model == "config.json" { "." } else { model.strip_suffix("/config.json").unwrap_or(model) };
        let name = match takes_files {
            true if is_gguf => folder,
            // Where its layers do not fit it is to say so, in place of running some of them on the host.
            true => "MODEL.gguf",
            false if folder.ends_with(".json") || folder == "-" => "MODEL",
            false => folder,
        };
        let layers = if takes_files { "-ngl 99 " } else { "" };
        let served = command(program, [&name.to_owned()], &format!("{layers}{flags}"));
        match best.engine {
            Some(_) => served,
            // The plan's own pools are no engine's.
            None => served + &wrap(&format!("--as {0} says what {0} itself admits", engine.engine), 2),
        }
    }

    /// How much more than was asked for it holds.
    fn margin(&self, fit: &Fit) -> String {
        let more = 100 * u128::from(fit.least().saturating_sub(self.sequences)) / u128::from(self.sequences.max(1));
        // The commands below ask for no more where an engine takes cells for all that it is told.
        let engine = fit.engine.as_deref().and_then(|engine| engine.parse::<EngineSpec>().ok());
        let told = engine.map_or(fit.sequences, |engine| self.layout_of(fit, engine).sequences);
        match told < fit.sequences {
            true => format!(": {told} asked for, and room for {}, margin {more} %", fit.held()),
            false => format!(": {} of {} asked for, margin {more} %", fit.held(), self.sequences),
        }
    }

    /// What ends its capacity, and what holds more on the same devices.
    fn ending(&self, best: &Fit) -> String {
        let same = |fit: &&Fit| (&fit.device, fit.devices, &fit.engine) == (&best.device, best.devices, &best.engine);
        let mut more: Vec<&Fit> = self.fits.iter().filter(same).filter(|fit| fit.sequences > best.sequences).collect();
        more.sort_by_key(|fit| (fit.changed_dtypes(), std::cmp::Reverse(fit.sequences)));
        more.dedup_by_key(|fit| (fit.kv_dtype, fit.state_dtype));
        let more: String = more.iter().map(|fit| format!("; {} holds {}", fit.layout(), fit.held())).collect();
        match best.capped_by == best.capped_by_words {
            true => format!("capped by {}{more}", best.capped_by_words),
            false => format!("capped by memory, of the caches most for {}{more}", best.capped_by_words),
        }
    }

    /// What of that which costs less, or has less memory where nothing has a price, falls the least short.
    fn next_cheaper(&self, best: &Fit) -> Option<String> {
        let is_asked = |fit: &&Fit| fit.engine.is_some() == best.engine.is_some();
        let cost = |fit: &Fit| fit.per_hour.map_or((0.0, fit.memory_bytes), |price| (price, 0));
        let cheaper = |fit: &&Fit| fit.per_hour.is_some() == best.per_hour.is_some() && cost(fit) < cost(best);
        let cheaper: Vec<&Fit> = self.fits.iter().filter(is_asked).filter(cheaper).collect();
        // In the order of rows those come first that hold, at the least cost, then those that fall the least short.
        let (name, next) =
            (if best.per_hour.is_some() { "next cheaper" } else { "with less memory" }, cheaper.first()?);
        if next.sequences == 0 {
            return Some(format!("{name}: nothing that was tried holds any"));
        }
        let price = next.per_hour.map(|hour| format!(" at {}", self.money(hour, 2, "an hour"))).unwrap_or_default();
        let (layout, held) = (next.layout(), next.held());
        Some(format!("{name}: {} x {}, {layout},{price} holds {held} of {}", next.devices, next.device, self.sequences))
    }

    /// The bound of speed in words.
    fn at_best(&self, best: &AtBest) -> String {
        let AtBest { alone_per_second: alone, tokens_per_second: all, sequences, bound_by, prompt_seconds, .. } = best;
        let price = best
            .per_million_tokens
            .map(|price| format!(" ({})", self.money(price, 3, "for a million tokens that are written")));
        let each = *all / (*sequences).max(1) as f64;
        let each = if *sequences > 1 { format!(", {:.0} for each", each.ceil()) } else { String::new() };
        format!(
            "at most {:.0} tokens/s for one sequence alone, {:.0} for {sequences}{each}{}: {bound_by} ends it; at least {prompt_seconds:.2} s to read a prompt of {}; a bound, which no engine reaches",
            alone.ceil(),
            all.ceil(),
            price.unwrap_or_default(),
            self.context,
        )
    }

    fn row(&self, fit: &Fit) -> Vec<String> {
        let mut row = vec![
            fit.verdict().into(),
            format!("{} x {}", fit.devices, fit.device),
            fit.held(),
            fit.capped_by_words.clone(),
            fit.at_best.as_ref().map_or_else(|| "-".into(), |best| format!("{:.0}", best.tokens_per_second.ceil())),
            fit.layout(),
        ];
        if self.currency.is_some() {
            row.insert(5, fit.per_hour.map_or_else(|| "-".into(), |price| format!("{price:.2}")));
        }
        row
    }

    /// Every layout that was tried, one a line.
    pub fn csv(&self) -> String {
        let mut text =
            "device,devices,tp,pp,dp,ep,engine,kv_dtype,state_dtype,holds,sequences,capped_by,outside_bytes,cache_bytes,per_hour,\
                        per_hour_and_million_held_tokens,most_tokens_per_second,most_alone_per_second,least_prompt_seconds,\
                        least_per_million_written_tokens,may_hold,least_sequences,most_sequences\n"
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
                fit.may_hold.to_string(),
                fit.least().to_string(),
                fit.most().to_string(),
            ];
            text.push_str(&(cells.join(",") + "\n"));
        }
        text
    }
}

/// The best layouts of devices that nobody priced, in a sentence.
fn without_prices(fits: &[&Fit]) -> String {
    let mut fits = fits.to_vec();
    fits.dedup_by_key(|fit| (&fit.device, fit.devices));
    let held: Vec<String> = fits
        .iter()
        .map(|fit| {
            let holds = match fit.verdict() {
                "yes" => "holds",
                "maybe" => "may hold",
                _ => "does not hold",
            };
            format!("{} x {} {holds}", fit.devices, fit.device)
        })
        .collect();
    if held.is_empty() { String::new() } else { wrap(&format!("without a price: {}", held.join(", ")), 5) }
}

/// A command that can be pasted: names are quoted and stay whole, since a line that is continued inside of quotes is no other.
fn command<'a>(program: &str, names: impl IntoIterator<Item = &'a String>, flags: &str) -> String {
    let names = names.into_iter().map(|name| quoted(name).into_owned());
    lines(program.to_owned(), names.chain(flags.split_whitespace().map(str::to_owned)).collect())
}

/// Words of a command in lines that are continued.
fn lines(program: String, words: Vec<String>) -> String {
    // A flag and its value stay in one line.
    let parts = words.into_iter().fold(vec![program], |mut parts, word| {
        match parts.last_mut() {
            Some(flag) if flag.starts_with('-') && !flag.contains(' ') && !word.starts_with('-') => {
                flag.push_str(&format!(" {word}"));
            }
            _ => parts.push(word),
        }
        parts
    });
    let mut text = String::from(" ");
    let mut column = 1;
    for part in parts {
        let width = part.chars().count() + 1;
        if column > 1 && column + width > WIDTH - 2 {
            text.push_str(" \\\n   ");
            column = 3;
        }
        text.push_str(&format!(" {part}"));
        column += width;
    }
    text + "\n"
}

impl Fit {
    /// Whether it holds what was asked for, in a word.
    fn verdict(&self) -> &'static str {
        match (self.holds, self.may_hold) {
            (true, _) => "yes",
            (_, true) => "maybe",
            _ => "no",
        }
    }

    /// The question about this row alone as flags of `cacheplan plan`.
    fn plan_flags(&self, context: u64) -> String {
        let engine = self.engine.iter().map(|engine| format!(" --as {engine}")).collect::<String>();
        format!("--device-memory {} --max-seq-len {context}{engine} {}", self.counted(), self.flags())
    }

    /// Its devices as they are asked for: `2xh200`.
    fn counted(&self) -> String {
        let count = if self.devices > 1 { format!("{}x", self.devices) } else { String::new() };
        // Words of a name are joined, so that it can be pasted.
        count + &self.device.replace(' ', "-")
    }
}

/// A cell that may have a comma or a quote.
fn cell(text: &str) -> String {
    if text.contains([',', '"', '\n']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text.to_owned() }
}
