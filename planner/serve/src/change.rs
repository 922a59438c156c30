//! Changes to a command that would make it start, or hold more.

use std::borrow::Cow;

use cacheplan_handlers::DType;
use cacheplan_planner::budget::Dtypes;
use cacheplan_planner::engines::Layout;

use crate::dynamo;
use crate::error::ServeError;
use crate::flags::parse::{Setting, parse};
use crate::flags::table::{Arity, Flag, flags};
use crate::launch::Launch;
use crate::program::Program;
use crate::question::tensorrt_llm;
use crate::remedy::Remedy;
use crate::said::Said;
use crate::secret;

impl Launch {
    /// The same command told a layout, in place of what it says of that itself; none where its engine cannot be told it.
    ///
    /// # Errors
    /// Words that start no engine, and a version that is not known.
    pub fn told(&self, layout: &Layout, version: Option<&str>) -> Result<Option<Self>, ServeError> {
        let program = Program::of(self, version)?;
        let Program { engine, start, .. } = program;
        let Some(mut told) = engine.flags_of(layout) else { return Ok(None) };
        let known = flags(engine.engine, engine.version);
        // As many sequences as it says itself; slots of cells are told with these.
        let batch = engine.engine.sequences_flag();
        let said = Said::of(self, &program, &known)?.parsed.settings;
        let is_said = said.get(batch).and_then(Setting::whole).is_some_and(|said| said > 0);
        told.retain(|(name, _)| *name != batch || !is_said || engine.engine.ranks_flag().is_none());
        // What stands above flags is told by none.
        let above = dynamo::rewritten(&self.words, start, &known)?.options;
        let file = self.config.iter().filter(|_| tensorrt_llm::file_wins(self, &program));
        let is_told = |key: &str, value: &str| {
            let flag = tensorrt_llm::flag_of(key, &known).map(|flag| flag.name);
            told.iter().all(|(name, told)| flag != Some(*name) || told.as_deref() == Some(value))
        };
        if file.chain(&above).any(|(key, value)| !is_told(key, value)) {
            return Ok(None);
        }
        let removed = engine.flags_of_sizes().iter().map(|name| Remedy::Remove(name));
        let set = told.into_iter().map(|(name, value)| Remedy::Set(name, value.unwrap_or_default()));
        let words = removed.chain(set).fold(self.words.clone(), |words, remedy| {
            let changed = remedy.applied(&words, start, &known).into_iter().next();
            changed.unwrap_or(words)
        });
        Ok(Some(Self { words, ..self.clone() }))
    }

    /// The same command told element types of keys and values, and of states, that it leaves open: each by the flag of whoever
    /// asks.
    ///
    /// # Errors
    /// As [`Launch::told`], a dtype that the engine cannot be told, and a flag by which the command says another itself.
    pub fn told_dtypes(
        &self,
        [kv, state]: [(&str, Option<DType>); 2],
        version: Option<&str>,
    ) -> Result<Self, ServeError> {
        let Program { engine, start, .. } = Program::of(self, version)?;
        if kv.1.is_none() && state.1.is_none() {
            return Ok(self.clone());
        }
        let known = flags(engine.engine, engine.version);
        let mut words = self.words.clone();
        let said = parse(engine, &dynamo::rewritten(&words, start, &known)?.words, start, &self.env)?.settings;
        let alone = Layout::alone(1, 1, Dtypes::default());
        for (flag, layout) in
            [(kv.0, Layout { kv_dtype: kv.1, ..alone }), (state.0, Layout { state_dtype: state.1, ..alone })]
        {
            let unconsumed = |why: String| ServeError::Unconsumed { flag: flag.to_owned(), why };
            let usual: Vec<&str> = engine.flags_of(&alone).into_iter().flatten().map(|(name, _)| name).collect();
            let told = engine.flags_of(&layout).ok_or_else(|| {
                unconsumed(format!(
                    "no flag of {} says that; leave it out, or state it in the engine's own way",
                    engine.engine
                ))
            })?;
            for (name, value) in told.into_iter().filter(|(name, _)| !usual.contains(name)) {
                let value = value.unwrap_or_default();
                match said.get(name) {
                    Some(setting) if setting.value() == value || setting.on && setting.values.is_empty() => {}
                    Some(setting) => {
                        return Err(unconsumed(format!("the command says that itself: {name} {}", setting.value())));
                    }
                    None => {
                        let changed = Remedy::Set(name, value).applied(&words, start, &known).into_iter().next();
                        words = changed.unwrap_or(words);
                    }
                }
            }
        }
        Ok(Self { words, ..self.clone() })
    }

    /// The same command with changes; none where its words start no engine.
    pub(crate) fn changed(&self, remedies: &[Remedy], version: Option<&str>) -> Option<Self> {
        let Program { engine, start, .. } = Program::of(self, version).ok()?;
        let known = flags(engine.engine, engine.version);
        let apply = |words: Vec<String>, remedy: &Remedy| remedy.applied(&words, start, &known).into_iter().next();
        let words = remedies.iter().try_fold(self.words.clone(), apply)?;
        Some(Self { words, ..self.clone() })
    }

    /// The words, behind the variables of its engine that are stated beside them, without the secrets in either.
    pub fn shown(&self) -> Vec<String> {
        const OF_ENGINES: [&str; 6] = ["VLLM_", "SGLANG_", "LLAMA_ARG_", "TLLM_", "TRTLLM_", "CUDA_VISIBLE_DEVICES"];
        let env = self.shown_env().filter(|(name, _)| OF_ENGINES.iter().any(|of| name.starts_with(of)));
        let mut env: Vec<String> = env.map(|(name, value)| format!("{name}={value}")).collect();
        if !env.is_empty() {
            env.insert(0, "env".to_owned());
        }
        env.into_iter().chain(secret::hidden(&self.words).into_iter().map(Cow::into_owned)).collect()
    }
}

impl Remedy {
    /// The words with this change, in the ways in which it may be meant. Flags are those of the engine, which begin at `start`.
    pub(crate) fn applied(&self, words: &[String], start: usize, flags: &[&'static Flag]) -> Vec<Vec<String>> {
        match self {
            Self::Rename(from, to) => {
                let renamed = |word: &String| match word.strip_prefix(from.as_str()) {
                    Some("") => to.clone(),
                    Some(rest) if rest.starts_with(['=', '.']) => format!("{to}{rest}"),
                    _ => word.clone(),
                };
                vec![
                    words
                        .iter()
                        .enumerate()
                        .map(|(at, word)| if at < start { word.clone() } else { renamed(word) })
                        .collect(),
                ]
            }
            Self::Drop(written) => {
                let is = |word: &String| word == written || word.starts_with(&format!("{written}="));
                let Some(at) = words.iter().skip(start).position(is).map(|at| at + start) else { return Vec::new() };
                let without = |count: usize| [&words[..at], words.get(at + count..).unwrap_or_default()].concat();
                let has_value = words.get(at + 1).is_some_and(|next| !next.starts_with('-'));
                if has_value { vec![without(2), without(1)] } else { vec![without(1)] }
            }
            Self::Remove(name) => vec![without(words, start, flags, name)],
            Self::Set(name, value) => {
                let known = flags.iter().find(|flag| flag.names().any(|known| known == *name));
                let mut changed = without(words, start, flags, known.map_or(name, |flag| flag.name));
                let is_switch = known.is_some_and(|flag| flag.values == Arity::Exactly(0));
                changed.push((*name).to_owned());
                changed.extend((!is_switch).then(|| value.clone()));
                vec![changed]
            }
        }
    }
}

/// The words without a flag, however it is spelled.
fn without(words: &[String], start: usize, flags: &[&'static Flag], name: &str) -> Vec<String> {
    let Some(flag) = flags.iter().find(|flag| flag.name == name) else { return words.to_vec() };
    let is = |word: &str| {
        let written = word.split(['=', '.']).next().unwrap_or(word);
        let joined = if written.starts_with("--") { written.replace('_', "-") } else { written.to_owned() };
        let begins = |known: &str| joined.len() > 2 && joined.starts_with("--") && known.starts_with(&joined);
        flag.names().any(|known| known == joined || known == written)
            || begins(flag.name)
                && flags.iter().flat_map(|flag| flag.names()).filter(|known| begins(known)).count() == 1
    };
    let mut kept = words[..start.min(words.len())].to_vec();
    let mut rest = words.iter().skip(start).peekable();
    while let Some(word) = rest.next() {
        if !is(word) {
            kept.push(word.clone());
            continue;
        }
        let most = match flag.values {
            _ if word.contains('=') => 0,
            Arity::Exactly(count) => count,
            Arity::Optional => 1,
            Arity::AtLeast(_) => usize::MAX,
        };
        let is_value = |next: &&String| !next.starts_with('-') || next.parse::<f64>().is_ok();
        for _ in 0..most {
            if rest.next_if(is_value).is_none() {
                break;
            }
        }
    }
    kept
}
