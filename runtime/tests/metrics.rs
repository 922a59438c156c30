//! What a server would answer at `/metrics`, read by the rules of the format.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use cacheplan_planner::Budget;
use cacheplan_runtime::{Request, Session, SessionOptions};

/// A family's type and its samples: name, labels, value.
struct Family {
    kind: String,
    samples: Vec<(String, BTreeMap<String, String>, f64)>,
}

fn is_name(text: &str) -> bool {
    let mut characters = text.chars();
    characters.next().is_some_and(|first| first.is_ascii_alphabetic() || first == '_')
        && characters.all(|character| character.is_ascii_alphanumeric() || character == '_')
}

/// Reads labels up to the closing brace; what is behind it.
fn labels(mut text: &str) -> (BTreeMap<String, String>, &str) {
    let mut found = BTreeMap::new();
    loop {
        let (name, rest) = text.split_once("=\"").unwrap();
        assert!(is_name(name), "{name}");
        let mut value = String::new();
        let mut characters = rest.char_indices();
        let end = loop {
            match characters.next().unwrap() {
                (at, '"') => break at,
                (_, '\\') => match characters.next().unwrap().1 {
                    'n' => value.push('\n'),
                    escaped @ ('"' | '\\') => value.push(escaped),
                    other => panic!("\\{other}"),
                },
                (_, character) => value.push(character),
            }
        };
        assert!(found.insert(name.to_owned(), value).is_none(), "label `{name}` twice");
        match rest[end + 1..].split_at(1) {
            (",", more) => text = more,
            ("}", behind) => return (found, behind),
            (other, _) => panic!("{other}"),
        }
    }
}

fn parse(text: &str) -> BTreeMap<String, Family> {
    let mut families: BTreeMap<String, Family> = BTreeMap::new();
    let mut current = String::new();
    let mut seen = BTreeSet::new();
    assert!(text.ends_with('\n'));
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            let (name, words) = help.split_once(' ').unwrap();
            assert!(is_name(name) && words.ends_with('.'), "{line}");
            let kind =
                lines.next().unwrap().strip_prefix(&format!("# TYPE {name} ")).expect("a type follows").to_owned();
            assert!(["gauge", "counter", "histogram"].contains(&kind.as_str()), "{kind}");
            current = name.to_owned();
            assert!(families.insert(current.clone(), Family { kind, samples: Vec::new() }).is_none(), "{name} twice");
            continue;
        }
        let end = line.find(['{', ' ']).unwrap();
        let name = &line[..end];
        let (labels, value) =
            if line[end..].starts_with('{') { labels(&line[end + 1..]) } else { (BTreeMap::new(), &line[end..]) };
        let value: f64 = value.strip_prefix(' ').unwrap().parse().unwrap();
        assert!(seen.insert((name.to_owned(), labels.clone())), "{line} twice");
        let family = families.get_mut(&current).expect("a family before its samples");
        let suffix = name.strip_prefix(&current).unwrap_or_else(|| panic!("{name} below {current}"));
        let allowed: &[&str] = if family.kind == "histogram" { &["_bucket", "_sum", "_count"] } else { &[""] };
        assert!(allowed.contains(&suffix), "{name}");
        family.samples.push((name.to_owned(), labels, value));
    }
    families
}

#[test]
fn metrics_are_what_prometheus_reads_and_what_was_served() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/models/llama");
    let budget = Budget::from_toml("max_seq_len = 96\nmax_batch_size = 2\n", "test").unwrap();
    let options = SessionOptions { budget, ignore_eos: true, ..SessionOptions::default() };
    let mut session = Session::open(&folder, options).unwrap();
    let before = parse(&session.metrics().unwrap());
    assert_eq!(before["cacheplan_generated_tokens_total"].samples[0].2, 0.0);

    let request = Request::new((1..40).collect(), 5);
    for _ in 0..2 {
        session.generate(&[request.clone(), request.clone()], false).unwrap();
    }
    let families = parse(&session.metrics().unwrap());
    for (name, family) in &families {
        assert!(!family.samples.is_empty(), "{name}");
        assert_eq!(family.kind == "counter", name.ends_with("_total"), "{name}");
        assert!(family.samples.iter().all(|(.., value)| value.is_finite() && *value >= 0.0), "{name}");
        if family.kind == "histogram" {
            assert!(name.ends_with("_seconds"), "{name}");
            let buckets: Vec<f64> =
                family.samples.iter().filter(|it| it.0.ends_with("_bucket")).map(|it| it.2).collect();
            assert!(buckets.is_sorted(), "{name}");
            let last = family.samples.iter().rfind(|it| it.0.ends_with("_bucket")).unwrap();
            assert_eq!((last.1["le"].as_str(), last.2), ("+Inf", family.samples.last().unwrap().2));
        }
    }
    let value = |name: &str| families[&format!("cacheplan_{name}")].samples[0].2;
    assert_eq!(value("generated_tokens_total"), 20.0);
    assert_eq!(value("prefix_requests_total"), 4.0);
    assert_eq!(value("prefix_prompt_tokens_total"), 4.0 * 39.0);
    assert!(value("prefix_hit_tokens_total") > 0.0);
    assert_eq!(value("computed_prompt_tokens_total"), 4.0 * 39.0 - value("prefix_hit_tokens_total"));
    let ended = &families["cacheplan_requests_total"].samples;
    assert_eq!(
        ended.iter().map(|it| (it.1["finish_reason"].as_str(), it.2)).collect::<Vec<_>>(),
        [("stop", 0.0), ("length", 4.0), ("cancelled", 0.0), ("error", 0.0)]
    );
    let first = &families["cacheplan_time_to_first_token_seconds"].samples;
    assert_eq!((first.last().unwrap().0.ends_with("_count"), first.last().unwrap().2), (true, 4.0));
    let pools = &families["cacheplan_pool_high_water_units"].samples;
    assert!(pools.iter().any(|it| it.1["pool"] == "kv_paged.0" && it.2 > 0.0));
}
