//! Which devices hold what was asked for, for people and for tables elsewhere.

use std::cmp::Ordering;

use cacheplan_handlers::DType;

use super::columns::{WIDTH, align, wrap};
use crate::device::DeviceInfo;
use crate::engines::EngineSpec;
use crate::export::file::quoted;
use crate::fit::{Answer, AtBest, FewerBits, Fit, Freed, cost, money};
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
        rows.extend(shown.iter().map(|fit| self.row(fit, shown[0])));
        text.extend(
            align(&rows, if self.currency.is_some() { &[2, 4, 5] } else { &[2, 4] })
                .into_iter()
                .map(|line| line + "\n"),
        );
        text.push_str(&self.none());
        text.push_str(&without_prices(&unpriced));
        text.push_str(&self.whose(&shown));
        match self.best() {
            Some(best) => text.push_str(&self.details(best)),
            None => {
                text.push('\n');
                self.without_best().iter().for_each(|said| text.push_str(&wrap(said, 0)));
            }
        }
        text.extend(self.freed.as_ref().map(|freed| self.changes(freed)));
        text
    }

    /// What surely holds it by flags alone, and its command.
    fn changes(&self, freed: &Freed) -> String {
        let fit = &freed.fit;
        let price = fit.per_hour.map(|hour| format!(", {}", self.price(hour))).unwrap_or_default();
        let lost = if freed.reuses_prefixes { "" } else { ", and reuses no prefix" };
        let (flags, held) = (freed.flags.join(" and "), fit.held());
        let said = format!(
            "with {flags}: {} x {}, {}, surely holds {held}{price}{lost}",
            fit.devices,
            fit.device,
            fit.division()
        );
        let Some(engine) = fit.engine.as_deref().and_then(|engine| engine.parse().ok()) else { return String::new() };
        let mut words = self.words_beside(engine);
        words.push("--".to_owned());
        words.extend(freed.command.iter().map(|word| quoted(word).into_owned()));
        format!("\nCHANGES\n{}", wrap(&said, 2)) + &lines(format!("cacheplan plan --device {}", fit.counted()), words)
    }

    /// Whose rules the rows go by, and what their short words mean.
    fn whose(&self, shown: &[&Fit]) -> String {
        let mut engines: Vec<&str> = Vec::new();
        for engine in self.fits.iter().filter_map(|fit| fit.engine.as_deref()) {
            if !engines.contains(&engine) {
                engines.push(engine);
            }
        }
        let own = self.fits.iter().any(|fit| fit.engine.is_none());
        let ranges = shown.iter().any(|fit| fit.least() < fit.most());
        let ranges = if ranges { "; of a range what it finds at its start decides" } else { "" };
        let whose = match (&*engines, own) {
            ([], _) => "the planner's own pools, which no engine has; --as vllm: what that holds".to_owned(),
            ([one], false) => {
                format!("by the rules of {one} and its own command{ranges}; --as plan: the planner's own pools")
            }
            (several, own) => {
                let first = shown.first().and_then(|fit| fit.engine.as_deref()).unwrap_or("the planner");
                let own = if own { "; plan: the planner's own pools" } else { "" };
                format!(
                    "by the rules of {} and their own commands{ranges}; a row that names none: {first}{own}",
                    several.join(", ")
                )
            }
        };
        let of = |has: fn(&Fit) -> bool, what: &'static str| shown.iter().any(|fit| has(fit)).then_some(what);
        let words = [
            of(|fit| fit.parallel.tp > 1, "tp: each layer over so many"),
            of(|fit| fit.parallel.pp > 1, "pp: stages of layers"),
            of(|fit| fit.parallel.dp > 1, "dp: replicas"),
            of(|fit| fit.parallel.ep > 1, "ep: experts over so many"),
            of(|fit| fit.kv_dtype.is_some(), "kv: dtype of keys and values"),
            of(|fit| fit.state_dtype.is_some(), "ssm: dtype of states"),
        ];
        let words: Vec<&str> = words.into_iter().flatten().collect();
        wrap(&whose, 5) + &if words.is_empty() { String::new() } else { wrap(&words.join(", "), 5) }
    }

    /// Why nothing surely holds what was asked for, and what would.
    fn without_best(&self) -> Vec<String> {
        let asked: Vec<&Fit> = self.fits.iter().filter(|fit| fit.engine.is_some()).collect();
        let decides = |fit: &&Fit| self.decides(fit);
        let tried = "nothing tried";
        let mut said = Vec::new();
        // Where a sequence is too long for an engine no device helps.
        if let Some(fit) = asked.first()
            && self.fits.iter().filter(decides).all(|fit| fit.longest.is_some())
        {
            let engine = fit.engine.as_deref().unwrap_or_default();
            let cap = &fit.capped_by;
            said.push(format!(
                "{engine} gives no more than the {cap} that the model was made for; ask for no longer --context"
            ));
            return said;
        }
        let may = self.fits.iter().filter(decides).find(|fit| fit.may_hold);
        said.push(match may {
            Some(fit) => format!(
                "{tried} surely holds that; {} x {}, {}, holds {}, as what it finds at its start decides: {} would surely",
                fit.devices,
                fit.device,
                fit.division(),
                fit.held(),
                if self.freed.is_some() { "what CHANGES says" } else { "more devices (--max-gpus)" }
            ),
            None if self.fewer_bits.is_empty() => format!("{tried} holds that; raise --max-gpus, or ask for less"),
            None => {
                let bits = self.fewer_bits.iter();
                let bits: Vec<String> =
                    bits.map(|fewer| format!("in {} bits some {}", fewer.bits, ByteSize(fewer.weights_bytes))).collect();
                format!(
                    "{tried} holds that; raise --max-gpus, or ask about quantised weights with --weights fp8 or int4: {}",
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
            let price = fit.per_hour.map(|price| format!(", {}", self.price(price))).unwrap_or_default();
            let weights = ByteSize(fewer.weights_bytes);
            let (bits, layout, held) = (fewer.bits, fit.division(), fit.held());
            let word = if bits == 8 { "fp8" } else { "int4" };
            Some(format!(
                "with {bits}-bit weights, assumed {weights}: {} x {}, {layout}, holds {held}{price}; ask with --weights {word}",
                fit.devices, fit.device
            ))
        };
        let each = self.fewer_bits.iter().enumerate().filter(|(at, _)| is_least(*at));
        each.filter_map(|(_, fewer)| said(fewer)).collect()
    }

    /// The devices that hold nothing, in sentences by what ends it.
    fn none(&self) -> String {
        let mut causes: Vec<(String, Vec<String>)> = Vec::new();
        let mut fits = self.too_small();
        fits.sort_by_key(|fit| (fit.longest.is_some(), fit.cache_bytes > 0));
        for fit in fits {
            let why = match fit.longest {
                Some(longest) => format!("no sequence of {} tokens, the longest has {longest}", self.context),
                None if fit.cache_bytes == 0 => "room for no sequence, weights and a step take too much".to_owned(),
                None => format!(
                    "room for no sequence, what weights and a step leave is less than one sequence of {} tokens",
                    self.context
                ),
            };
            let name = format!("{} x {}", fit.devices, fit.device);
            match causes.iter_mut().find(|(known, _)| *known == why) {
                Some((_, names)) => names.push(name),
                None => causes.push((why, vec![name])),
            }
        }
        let listed = |(why, names): (String, Vec<String>)| {
            format!("no{}", &wrap(&format!("{}: {why}", names.join(", ")), 5)[2..])
        };
        causes.into_iter().map(listed).collect()
    }

    /// The best layout, and the commands that plan and serve it.
    fn details(&self, best: &Fit) -> String {
        let price = best.per_hour.map(|hour| wrap(&self.price(hour), 2));
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
            let price = whole.per_hour.map(|hour| format!(", {}", self.price(hour))).unwrap_or_default();
            let held = format!("holds {}{price}", whole.held());
            let said = format!(
                "with caches in the model's own dtypes: {} x {}, {}, {held}",
                whole.devices,
                whole.device,
                whole.division()
            );
            wrap(&said, 2)
        }));
        self.fewer_bits().iter().for_each(|said| text.push_str(&wrap(said, 2)));
        text.extend(best.at_best.as_ref().map(|at_best| wrap(&self.at_best(at_best), 2)));
        text.extend(self.screen(best).map(|said| wrap(said, 2)));
        if let Some(told) = &self.command {
            let engine = best.engine.as_deref().and_then(|engine| engine.parse().ok());
            let stated = self.stated.iter().cloned().chain(self.stated_weights(engine)).chain(["--".to_owned()]);
            let words = stated.chain(told.iter().cloned()).map(|word| quoted(&word).into_owned()).collect();
            return text + &lines(format!("cacheplan plan --device {}", best.counted()), words);
        }
        text.push_str(&self.asked(best));
        text.push_str(&self.serving(best));
        text
    }

    /// What a device that may drive a screen is to be told.
    fn screen(&self, best: &Fit) -> Option<&'static str> {
        let device: DeviceInfo = best.device.parse().ok()?;
        let is_stated = self.stated.iter().any(|word| word == "--reserve");
        (device.has_outputs() && !is_stated)
            .then_some("if it drives a screen too, state what that takes: --reserve 1GiB")
    }

    /// What an hour costs, also for each sequence.
    fn price(&self, hour: f64) -> String {
        let each = hour / self.sequences.max(1) as f64;
        let each = self.money(each, 4, &format!("for each of the {}", sequences(self.sequences)));
        let each = if self.sequences > 1 { format!(", {each}") } else { String::new() };
        self.money(hour, 2, "an hour") + &each
    }

    /// The command that asks about a row alone: of an engine's row with the engine's own command, as the row was asked.
    fn asked(&self, best: &Fit) -> String {
        let engine = best.engine.as_deref().and_then(|engine| engine.parse::<EngineSpec>().ok());
        let Some((engine, told)) = engine.and_then(|engine| Some((engine, self.told(best, engine)?))) else {
            let weights = self.stated_weights(None);
            let named = [&self.model].into_iter().chain(&self.stated).chain(&weights);
            return command("cacheplan plan", named, &best.plan_flags(self.context));
        };
        let mut words = self.words_beside(engine);
        let name = if self.model == "-" { "MODEL" } else { &self.model };
        words.push("--".to_owned());
        words.extend(engine.program().split_whitespace().chain([name]).map(|word| quoted(word).into_owned()));
        words.extend(told.split_whitespace().map(str::to_owned));
        lines(format!("cacheplan plan --device {}", best.counted()), words)
    }

    /// What stands beside an engine's own command.
    fn words_beside(&self, engine: EngineSpec) -> Vec<String> {
        let mut words = [self.stated_of_files(), self.stated_weights(Some(engine))].concat();
        let is_said = words.iter().any(|word| word == "--engine-version");
        if engine.version != engine.engine.newest() && !is_said {
            words.extend(["--engine-version".to_owned(), engine.version_name()]);
        }
        // What is piped in has no name.
        if self.model == "-" {
            words.extend(["--model-config", "-"].map(str::to_owned));
        }
        words
    }

    /// What is stated of the model's files; dtypes are told the engine.
    fn stated_of_files(&self) -> Vec<String> {
        let pairs = self.stated.chunks(2).filter(|pair| !pair[0].ends_with("-dtype"));
        pairs.flatten().map(|word| quoted(word).into_owned()).collect()
    }

    /// The weights that are stated, as flags of `cacheplan plan`; none where the engine makes them itself, as its own command says.
    fn stated_weights(&self, engine: Option<EngineSpec>) -> Vec<String> {
        let weights = self.weights.as_ref().filter(|weights| !weights.are_made_by(engine));
        let bytes = weights.and_then(|weights| weights.bytes(engine));
        bytes.into_iter().flat_map(|bytes| ["--weights".to_owned(), bytes.stated()]).collect()
    }

    /// An amount, in the currency where one is stated.
    fn money(&self, amount: f64, digits: usize, of: &str) -> String {
        format!("{} {of}", money(amount, digits, self.currency.as_deref().unwrap_or_default()))
    }

    /// The command that serves it, and what its words stand for.
    fn serving(&self, best: &Fit) -> String {
        let named = best.engine.as_deref().map(str::parse::<EngineSpec>);
        // The plan's own pools are no engine's.
        let Some(Ok(engine)) = named else { return String::new() };
        let Some(served) = self.served(best, engine) else { return String::new() };
        let said = served.others.map(|others| wrap(&others.to_string(), 2));
        command(served.program, [&served.model], &served.flags) + &said.unwrap_or_default()
    }

    /// How much more than was asked for it holds.
    fn margin(&self, fit: &Fit) -> String {
        let more = 100 * u128::from(fit.least().saturating_sub(self.sequences)) / u128::from(self.sequences.max(1));
        // The commands below ask for no more where an engine takes cells for all that it is told.
        let engine = fit.engine.as_deref().and_then(|engine| engine.parse::<EngineSpec>().ok());
        let told = engine.map_or(fit.sequences, |engine| self.layout_of(fit, engine).sequences);
        match told < fit.sequences {
            true => format!(": {told} asked for, and room for {}, margin {more} %", fit.held()),
            false => format!(": room for {}, {} asked for, margin {more} %", fit.held(), self.sequences),
        }
    }

    /// What ends its capacity, and what holds more on the same devices.
    fn ending(&self, best: &Fit) -> String {
        let same = |fit: &&Fit| (&fit.device, fit.devices, &fit.engine) == (&best.device, best.devices, &best.engine);
        let mut more: Vec<&Fit> = self.fits.iter().filter(same).filter(|fit| fit.sequences > best.sequences).collect();
        more.sort_by_key(|fit| (fit.changed_dtypes(), std::cmp::Reverse(fit.sequences)));
        more.dedup_by_key(|fit| (fit.kv_dtype, fit.state_dtype));
        let more: String = more.iter().map(|fit| format!("; {}: {}", fit.division(), fit.held())).collect();
        let (limit, caches) = best.ending();
        let caches = caches.map(|caches| format!(", most of the caches being {caches}")).unwrap_or_default();
        format!("capped by {limit}{caches}{more}")
    }

    /// What of that which costs less, or has less memory where nothing has a price, falls the least short.
    fn next_cheaper(&self, best: &Fit) -> Option<String> {
        let cost = |fit: &Fit| fit.per_hour.map_or((0.0, fit.memory_bytes), |price| (price, 0));
        let cheaper = |fit: &&Fit| fit.per_hour.is_some() == best.per_hour.is_some() && cost(fit) < cost(best);
        let cheaper: Vec<&Fit> = self.fits.iter().filter(|fit| self.decides(fit)).filter(cheaper).collect();
        // In the order of rows those come first that hold, at the least cost, then those that fall the least short.
        let (name, next) =
            (if best.per_hour.is_some() { "next cheaper" } else { "with less memory" }, cheaper.first()?);
        let said = |fit: &Fit| {
            let price = fit.per_hour.map(|hour| format!(" at {}", self.money(hour, 2, "an hour"))).unwrap_or_default();
            format!("{} x {}, {}{price}", fit.devices, fit.device, fit.layout_beside(best))
        };
        if next.sequences > 0 {
            return Some(format!("{name}: {}: room for {} of {}", said(next), next.held(), self.sequences));
        }
        // What holds none falls the least short where it costs the most.
        let nearest =
            cheaper.into_iter().max_by(|one, other| cost(one).partial_cmp(&cost(other)).unwrap_or(Ordering::Equal))?;
        let weights =
            if self.fewer_bits.iter().any(|fewer| fewer.fit.is_some()) { " with weights as they are" } else { "" };
        Some(format!("{name}: {}: room for no sequence{weights}", said(nearest)))
    }

    /// The bound of speed in words.
    fn at_best(&self, best: &AtBest) -> String {
        let AtBest { alone_per_second: alone, tokens_per_second: all, sequences, bound_by, prompt_seconds, .. } = best;
        let price = best
            .per_million_tokens
            .map(|price| format!(" ({})", self.money(price, 3, "for a million tokens that are written")));
        let limit = if *bound_by == "memory" { "memory's bandwidth is the limit" } else { "arithmetic is the limit" };
        let each = *all / (*sequences).max(1) as f64;
        let each = if *sequences > 1 { format!(", {:.0} for each", each.ceil()) } else { String::new() };
        format!(
            "at most {:.0} tokens/s for one sequence alone, {:.0} for {sequences}{each}{}: {limit}; at least {prompt_seconds:.2} s to read a prompt of {}; a bound, which no engine reaches",
            alone.ceil(),
            all.ceil(),
            price.unwrap_or_default(),
            self.context,
        )
    }

    fn row(&self, fit: &Fit, first: &Fit) -> Vec<String> {
        let mut row = vec![
            fit.verdict().into(),
            format!("{} x {}", fit.devices, fit.device),
            fit.held(),
            fit.capped_by_words.clone(),
            fit.at_best.as_ref().map_or_else(|| "-".into(), |best| format!("{:.0}", best.tokens_per_second.ceil())),
            fit.layout_beside(first),
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
    /// What ends its capacity, for people: a limit, or memory with the caches that take the most of it.
    pub fn ending(&self) -> (&str, Option<&str>) {
        match self.capped_by == self.capped_by_words {
            true => (&self.capped_by_words, None),
            false => ("memory", Some(&self.capped_by_words)),
        }
    }

    /// Whether it holds what was asked for, in a word.
    fn verdict(&self) -> &'static str {
        match (self.holds, self.may_hold) {
            (true, _) => "yes",
            (_, true) => "maybe",
            _ => "no",
        }
    }

    /// The question about this row alone as flags of `cacheplan plan`.
    pub fn plan_flags(&self, context: u64) -> String {
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
