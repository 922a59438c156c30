//! What a flag says of caches.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use cacheplan_planner::Engine;
use cacheplan_planner::engines::FlagMeaning;

use super::table::{Flag, flags};

/// What a flag says of caches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Meaning {
    /// Nothing.
    None,
    /// It changes what is measured beside caches, whose bytes are an interval anyway.
    Profiled,
    /// It changes what weights take.
    Weights,
    /// The model.
    Model,
    /// Its revision.
    Revision,
    /// A key of the budget.
    Key(&'static str),
    /// What the planner's own table of the engine's keys says.
    Planner(FlagMeaning),
    /// The engine's file in `question` reads it.
    Own,
    /// It says something of caches that is not planned, and why.
    Unread(&'static str),
}

/// The hand-written lines: engine, meaning, flags.
static LINES: LazyLock<BTreeMap<(&str, &str), Meaning>> = LazyLock::new(|| {
    let lines = include_str!("meaning.tsv").lines().filter(|line| !line.starts_with('#'));
    let parts = lines.filter_map(|line| {
        let [engine, meaning, flags] = line.split('\t').collect::<Vec<_>>().try_into().ok()?;
        Some((engine, meaning, flags))
    });
    parts.flat_map(|(engine, word, flags)| flags.split(' ').map(move |flag| ((engine, flag), named(word)))).collect()
});

fn named(word: &'static str) -> Meaning {
    match word {
        "none" | "secret" => Meaning::None,
        "profiled" => Meaning::Profiled,
        "weights" => Meaning::Weights,
        "model" => Meaning::Model,
        "revision" => Meaning::Revision,
        "own" => Meaning::Own,
        word => match word.split_once(':') {
            Some(("key", path)) => Meaning::Key(path),
            Some(("unread", why)) => Meaning::Unread(why),
            _ => Meaning::Unread(NOBODY),
        },
    }
}

const NOBODY: &str = "nobody read what it does to caches";

/// Groups of llama.cpp have no names.
const NO_GROUP: &str = "group:";

/// What `flag` of `engine` says.
pub(crate) fn meaning(engine: Engine, flag: &Flag) -> Meaning {
    let line = |name: &str| LINES.get(&(engine.name(), name)).copied();
    // An older parser's first name may be another's alias.
    if let Some(meaning) = flag.names().find_map(line) {
        return meaning;
    }
    let names = flag.names().map(|name| name.trim_start_matches('-'));
    let said = names.filter_map(|name| engine.meaning_of(name)).find(|said| *said != FlagMeaning::Unsaid);
    if let Some(said) = said {
        return Meaning::Planner(said);
    }
    // Older parsers group less; a flag that is there still is what it is now.
    let newest = flags(engine, engine.newest()).into_iter().find(|newest| newest.name == flag.name);
    let groups = [Some(flag.group), newest.map(|newest| newest.group)];
    let of_group = groups.into_iter().flatten().filter(|group| !group.is_empty());
    let of_group = of_group.filter_map(|group| line(&format!("{NO_GROUP}{group}"))).next();
    of_group.unwrap_or(Meaning::Unread(NOBODY))
}

#[cfg(test)]
mod tests {
    use super::super::table::read_versions;
    use super::*;

    /// Every version whose parser was read.
    fn specs() -> Vec<cacheplan_planner::EngineSpec> {
        read_versions().collect()
    }

    #[test]
    fn every_line_names_flags_that_some_version_has() {
        let known: Vec<(&str, &Flag)> = specs()
            .iter()
            .flat_map(|spec| flags(spec.engine, spec.version).into_iter().map(|flag| (spec.engine.name(), flag)))
            .collect();
        let has = |engine: &str, name: &str| {
            known.iter().any(|(of, flag)| {
                *of == engine
                    && (flag.names().any(|known| known == name) || format!("{NO_GROUP}{}", flag.group) == name)
            })
        };
        let stray: Vec<_> = LINES.keys().filter(|(engine, flag)| !has(engine, flag)).collect();
        assert!(stray.is_empty(), "{stray:?}");
    }

    #[test]
    fn every_flag_has_a_meaning_or_a_reason() {
        let of = |spec: cacheplan_planner::EngineSpec| {
            flags(spec.engine, spec.version).into_iter().map(move |flag| (flag.name, meaning(spec.engine, flag)))
        };
        let without = |meaning| matches!(meaning, Meaning::Unread(NOBODY) | Meaning::Planner(FlagMeaning::Unsaid));
        let nobody: Vec<&str> =
            specs().into_iter().flat_map(of).filter(|(_, meaning)| without(*meaning)).map(|(name, _)| name).collect();
        assert_eq!(nobody, [""; 0]);
        let said: Vec<_> = LINES.iter().collect();
        let lines = include_str!("meaning.tsv").lines().filter(|line| !line.starts_with('#'));
        let stated: usize = lines.map(|line| line.split('\t').nth(2).unwrap().split(' ').count()).sum();
        assert_eq!(stated, said.len(), "a flag stands in two lines");
    }

    #[test]
    fn the_flags_that_plans_are_exported_in_are_read_back() {
        for (spec, name, expected) in [
            ("vllm", "--max-num-seqs", FlagMeaning::Key("max_batch_size")),
            ("vllm", "--enable-prefix-caching", FlagMeaning::Key("engine.prefix_caching")),
            ("sglang", "--disable-radix-cache", FlagMeaning::NotKey("engine.prefix_caching")),
            ("tensorrt-llm", "--max_num_tokens", FlagMeaning::Key("max_num_tokens")),
        ] {
            let spec: cacheplan_planner::EngineSpec = spec.parse().unwrap();
            let flag = flags(spec.engine, spec.version).into_iter().find(|flag| flag.name == name).unwrap();
            assert_eq!(meaning(spec.engine, flag), Meaning::Planner(expected));
        }
    }
}
