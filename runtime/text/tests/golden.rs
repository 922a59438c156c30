//! Beside what transformers makes of the same tokenizers and templates.

use std::path::{Path, PathBuf};

use cacheplan_text::{ChatTemplate, Message, TemplateSource, TextError, TextStream, Tokenizer};
use proptest::prelude::*;
use rstest::rstest;
use serde::Deserialize;
use serde::de::DeserializeOwned;

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures")
}

fn read<T: DeserializeOwned>(name: &str) -> T {
    serde_json::from_slice(&std::fs::read(fixtures().join(name)).unwrap()).unwrap()
}

fn tokenizer(name: &str) -> Tokenizer {
    Tokenizer::beside(&fixtures().join(name), 400).unwrap()
}

#[derive(Deserialize)]
struct Sample {
    text: String,
    ids: Vec<u32>,
    with_special: Vec<u32>,
    decoded: String,
}

#[rstest]
fn text_becomes_the_golden_tokens_and_text_again(#[values("byte_level", "byte_fallback", "tiny")] name: &str) {
    let tokenizer = tokenizer(name);
    let samples: Vec<Sample> = read(&format!("{name}/golden.json"));
    assert!(samples.len() > 10);
    for sample in samples {
        assert_eq!(tokenizer.encode(&sample.text, false).unwrap(), sample.ids, "{:?}", sample.text);
        assert_eq!(tokenizer.encode(&sample.text, true).unwrap(), sample.with_special, "{:?}", sample.text);
        assert_eq!(tokenizer.decode(&sample.ids).unwrap(), sample.decoded, "{:?}", sample.text);
    }
}

/// What a stream lets out of tokens that follow a prompt, and its pieces.
fn streamed(tokenizer: &Tokenizer, prompt: &[u32], tokens: &[u32], stop: &[&str]) -> (String, Vec<String>) {
    let stop = stop.iter().map(|&stop| stop.to_owned()).collect();
    let mut stream = TextStream::new(tokenizer, prompt, stop);
    let mut pieces = Vec::new();
    for &token in tokens {
        let piece = stream.push(token).unwrap();
        pieces.push(piece.text);
        if piece.stopped {
            return (pieces.concat(), pieces);
        }
    }
    (pieces.concat() + &stream.finish().unwrap(), pieces)
}

#[rstest]
fn a_stream_gives_the_text_and_never_a_cut_character(#[values("byte_level", "byte_fallback", "tiny")] name: &str) {
    let tokenizer = tokenizer(name);
    for sample in read::<Vec<Sample>>(&format!("{name}/golden.json")) {
        let whole = tokenizer.decode(&sample.ids).unwrap();
        for cut in 0..=sample.ids.len() {
            let (prompt, tokens) = sample.ids.split_at(cut);
            let (text, pieces) = streamed(&tokenizer, prompt, tokens, &[]);
            // What a decoder drops of the beginning of a text does not count.
            let before = tokenizer.decode(prompt).unwrap();
            if whole.starts_with(&before) {
                assert!(pieces.iter().all(|piece| !piece.contains('\u{fffd}')), "{pieces:?}");
                assert_eq!((before + &text).trim_start(), whole.trim_start(), "{cut}");
            }
        }
    }
}

#[test]
fn characters_come_out_when_their_last_token_has_come() {
    let tokenizer = tokenizer("byte_level");
    let ids = tokenizer.encode("x🙂", false).unwrap();
    assert!(ids.len() > 2, "{ids:?}");
    let (text, pieces) = streamed(&tokenizer, &[], &ids, &[]);
    assert_eq!(text, "x🙂");
    assert_eq!((pieces[0].as_str(), pieces[1].as_str()), ("x", ""));
    assert_eq!(pieces.last().unwrap(), "🙂");
}

#[test]
fn what_never_becomes_a_character_is_let_out_in_the_end() {
    let tokenizer = tokenizer("byte_level");
    let first = tokenizer.encode("🙂", false).unwrap()[0];
    let (text, pieces) = streamed(&tokenizer, &[], &[first; 40], &[]);
    assert_eq!(text.chars().count(), 40);
    assert!(text.chars().all(|character| character == '\u{fffd}'));
    assert!(pieces.iter().take(12).any(|piece| !piece.is_empty()), "it is not held back for ever");
}

#[rstest]
#[case(&["owner"], "every block has an ")]
#[case(&["an owner, and", "every owner"], "every block has ")]
#[case(&["k has", "block"], "every ")]
#[case(&["nothing", ""], "every block has an owner, and every owner knows why.")]
fn a_stop_string_ends_a_text_across_tokens(
    #[case] stop: &[&str],
    #[case] expected: &str,
    #[values("byte_level", "byte_fallback")] name: &str,
) {
    let tokenizer = tokenizer(name);
    let prompt = tokenizer.encode("live in pools;", true).unwrap();
    let whole = tokenizer.encode("live in pools; every block has an owner, and every owner knows why.", true).unwrap();
    let (text, _) = streamed(&tokenizer, &prompt, &whole[prompt.len()..], stop);
    assert_eq!(text.trim_start(), expected);
}

proptest! {
    /// No tokens make a stream panic, and it lets out what the tokens say.
    #[test]
    fn a_stream_of_any_tokens_ends(tokens in prop::collection::vec(0u32..420, 0..40)) {
        let tokenizer = tokenizer("byte_level");
        let (text, _) = streamed(&tokenizer, &[], &tokens, &[]);
        let whole = tokenizer.decode(&tokens).unwrap();
        let letters = |text: &str| text.chars().filter(char::is_ascii_alphanumeric).collect::<String>();
        prop_assert_eq!(letters(&text), letters(&whole));
        // Here a byte that fits nowhere takes those before it with it, when they are decoded at once.
        streamed(&self::tokenizer("byte_fallback"), &[], &tokens, &[]);
    }
}

#[test]
fn a_tokenizer_of_another_model_is_refused_with_its_last_token() {
    let error = Tokenizer::beside(&fixtures().join("byte_level"), 96).unwrap_err();
    assert!(matches!(error, TextError::Vocabulary { vocab_size: 96, .. }));
    let text = error.to_string();
    assert!(text.contains("tokenizer.json: it is not this model's tokenizer: token `"), "{text}");
    assert!(text.ends_with("and the model knows 96 tokens"), "{text}");
}

#[rstest]
#[case::none(None, "there is no tokenizer.json here")]
#[case::broken(Some("{"), "tokenizer.json: not valid JSON: EOF")]
#[case::other(Some("[1, 2]"), "tokenizer.json: not a tokenizer: ")]
#[case::model(
    Some(r#"{"version": "1.0", "model": {"type": "BPE", "vocab": {"a": 0}, "merges": [["a", "b"]]}}"#),
    "tokenizer.json: not a tokenizer: "
)]
fn what_is_no_tokenizer_is_named(#[case] content: Option<&str>, #[case] expected: &str) {
    let folder = tempfile::tempdir().unwrap();
    if let Some(content) = content {
        std::fs::write(folder.path().join("tokenizer.json"), content).unwrap();
    }
    let error = Tokenizer::beside(folder.path(), 400).unwrap_err().to_string();
    assert!(error.contains(expected), "{error}");
}

#[test]
fn patterns_that_would_take_gigabytes_are_refused() {
    let pattern = "\\\\s++|".repeat(4000);
    let file = format!(r#"{{"pre_tokenizer": {{"pretokenizers": [{{"pattern": {{"Regex": "{pattern}"}}}}]}}}}"#);
    let folder = folder(&[("tokenizer.json", file)]);
    let error = Tokenizer::beside(folder.path(), 400).unwrap_err().to_string();
    assert!(error.contains("its patterns have more than 16384 bytes"), "{error}");
}

#[test]
fn a_tokenizer_that_the_library_panics_at_is_an_error() {
    const FILE: &str = r#"{"version": "1.0", "model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}, "post_processor":
        {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "[CLS]", "type_id": 0}}], "pair": [],
        "special_tokens": {}}}"#;
    let folder = folder(&[("tokenizer.json", FILE.to_owned())]);
    let encoded = Tokenizer::beside(folder.path(), 400).and_then(|tokenizer| tokenizer.encode("a", true));
    let error = encoded.unwrap_err().to_string();
    assert!(error.contains("tokenizer.json: ") && error.contains("the library that reads it failed"), "{error}");
}

#[derive(Deserialize)]
struct Conversation {
    template: String,
    messages: Vec<Message>,
    prompt: Option<String>,
    error: Option<String>,
}

/// A folder with these files.
fn folder(files: &[(&str, String)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, content) in files {
        std::fs::write(folder.path().join(name), content).unwrap();
    }
    folder
}

fn config(template: Option<serde_json::Value>) -> (&'static str, String) {
    let mut config = serde_json::json!({"bos_token": "<s>", "eos_token": {"content": "</s>", "special": true}});
    if let Some(template) = template {
        config["chat_template"] = template;
    }
    ("tokenizer_config.json", config.to_string())
}

#[test]
fn templates_give_the_golden_prompts_and_errors() {
    let conversations: Vec<Conversation> = read("templates.json");
    assert!(conversations.iter().any(|case| case.error.is_some()));
    for case in conversations {
        let beside = folder(&[config(None), ("chat_template.jinja", case.template.clone())]);
        let inside = folder(&[config(Some(case.template.clone().into()))]);
        for (folder, file) in
            [(&beside, "chat_template.jinja, line 1: "), (&inside, "tokenizer_config.json: chat_template, line 1: ")]
        {
            let rendered = ChatTemplate::beside(folder.path()).unwrap().render(&case.messages);
            match (&case.prompt, &case.error) {
                (Some(prompt), _) => assert_eq!(&rendered.unwrap(), prompt),
                (None, Some(error)) => {
                    let text = rendered.unwrap_err().to_string();
                    assert!(text.contains(file) && text.contains(error.as_str()), "{text}");
                }
                (None, None) => panic!("a case without an outcome"),
            }
        }
    }
}

#[derive(Deserialize)]
struct Values {
    messages: Vec<Message>,
    cases: Vec<Rendered>,
    random: Vec<Rendered>,
}

#[derive(Deserialize)]
struct Rendered {
    template: String,
    /// None where transformers fails.
    prompt: Option<String>,
}

fn rendered(template: &str, messages: &[Message]) -> Result<String, TextError> {
    let template = TemplateSource { file: "t".into(), text: template.into(), special: Default::default() };
    ChatTemplate::from_source(template).and_then(|template| template.render(messages))
}

/// Those that become something else.
fn others(cases: &[Rendered], messages: &[Message], may_be_refused: bool) -> Vec<String> {
    let other = |case: &Rendered| match (rendered(&case.template, messages), &case.prompt) {
        (Ok(prompt), Some(expected)) if prompt == *expected => None,
        (Err(_), None) => None,
        (Err(error), Some(_)) if may_be_refused && error.to_string().contains("not known") => None,
        (found, expected) => Some(format!("{}\n  expected {expected:?}\n  found    {found:?}", case.template)),
    };
    cases.iter().filter_map(other).collect()
}

/// Numbers, lists, dicts and tuples as text, operators, filters and methods: by Python's rules.
#[test]
fn templates_make_of_values_what_transformers_does() {
    let Values { messages, cases, .. } = read("values.json");
    assert!(cases.len() > 700, "{}", cases.len());
    let others = others(&cases, &messages, false);
    assert!(others.is_empty(), "{} of {}:\n{}", others.len(), cases.len(), others.join("\n"));
}

/// Filters, tests and operators of values by chance: what transformers makes of them, or a refusal that says what is not known.
#[test]
fn expressions_by_chance_are_transformers_or_are_refused_by_name() {
    let Values { messages, random, .. } = read("values.json");
    assert!(random.len() > 1000, "{}", random.len());
    let others = others(&random, &messages, true);
    assert!(others.is_empty(), "{} of {}:\n{}", others.len(), random.len(), others.join("\n"));
    let all = random.iter().filter(|case| case.prompt.is_some());
    let (made, all) = (all.clone().filter(|case| rendered(&case.template, &messages).is_ok()).count(), all.count());
    assert!(made * 100 > all * 95, "only {made} of {all} are rendered");
}

/// The memory is asked for before it is taken.
#[rstest]
#[case::repeated("{{ 'a' * 100000000 }}")]
#[case::list("{{ [1] * 100000000 }}")]
#[case::added("{% set a = 'a' * 8000000 %}{{ a + a }}")]
#[case::beside("{% set a = 'a' * 8000000 %}{{ a ~ a }}")]
#[case::formatted("{% set a = 'a' * 5000000 %}{{ '%s%s' % (a, a) }}")]
#[case::joined("{% set a = 'a' * 5000000 %}{{ [a, a] | join }}")]
#[case::replaced("{% set a = 'a' * 5000 %}{{ a | replace('a', a) }}")]
#[case::indented("{% set a = '\n' * 5000 %}{{ a | indent(9999, true, true) }}")]
fn too_large_a_value_is_refused_before_it_is_made(#[case] template: &str) {
    let error = rendered(template, &[]).unwrap_err().to_string();
    assert!(error.contains("a value of more than 8388608 bytes or items is not made"), "{error}");
}

#[test]
fn dates_have_no_zone_and_are_those_of_the_c_locale() {
    let text = rendered("{{ strftime_now('%x|%D|%Z|%z|%X|%H') }}", &[]).unwrap();
    let parts: Vec<&str> = text.split('|').collect();
    assert_eq!(
        (parts[0].len(), parts[0] == parts[1], parts[2], parts[3], parts[4].len()),
        (8, true, "", "", 8),
        "{text}"
    );
}

#[rstest]
#[case::text_of_a_function("{{ raise_exception }}", "no text that is the same")]
#[case::a_json_of_a_view("{{ {'a': 1}.keys() | tojson }}", "not JSON serializable")]
#[case::a_digit_of_another_script("{{ '\u{b2}'.isdigit() }}", "is not known")]
#[case::a_wide_text("{{ '%999999999d' % 1 }}", "at most")]
#[case::a_wide_field("{{ '{:999999999}'.format(1) }}", "at most")]
#[case::a_long_range("{{ range(999999999) }}", "a range of more than")]
#[case::a_wide_fill("{{ 'a'.center(999999999) }}", "at most")]
#[case::too_many_values("{{ 'a' % 'b' }}", "not all arguments converted")]
#[case::too_few_values("{{ '%s %s' % 'b' }}", "not enough arguments")]
#[case::by_zero("{{ 1 % 0 }}", "division or modulo by zero")]
#[case::a_number_as_text("{{ ','.join([1]) }}", "a str is wanted")]
#[case::open("{{ (1, 2 ~ }}", "syntax error")]
fn what_python_raises_at_or_is_not_known_here_is_an_error(#[case] template: &str, #[case] expected: &str) {
    let folder = folder(&[("chat_template.jinja", template.to_owned())]);
    let rendered = ChatTemplate::beside(folder.path()).and_then(|template| template.render(&[]));
    let error = rendered.unwrap_err().to_string();
    assert!(error.contains(expected), "{error}");
}

proptest! {
    /// Whatever stands in a template, it is rendered or refused.
    #[test]
    fn no_template_makes_it_panic(
        parts in prop::collection::vec(prop::sample::select(vec![
            "{{", "}}", "{%", "%}", "{#", "#}", "-", "+", "~", "%", "(", ")", "[", "]", "{", "}", ",", ":", "'", "\"", "\\",
            "a", "1", "1e", ".", "|", "is", "not", "in", "if", "set", "for", "raw", "endraw", "generation", "é", " ", "\n", "**",
        ]), 0..30),
    ) {
        let template = TemplateSource { file: "t".into(), text: parts.concat(), special: Default::default() };
        let rendered = ChatTemplate::from_source(template).and_then(|template| template.render(&[]));
        prop_assert!(!rendered.is_err_and(|error| error.to_string().contains("the library that reads it failed")));
    }
}

#[rstest]
#[case::syntax("a\nb {% if %}\n", "chat_template.jinja, line 2: syntax error: ")]
#[case::unknown("a\n\n{{ nothing.of.it }}", "chat_template.jinja, line 3: undefined value")]
#[case::endless("{% macro m() %}{{ m() }}{% endmacro %}\n{{ m() }}", "chat_template.jinja, line ")]
#[case::steps(
    "{% for a in range(9999) %}{% for b in range(9999) %}{{ '' }}{% endfor %}{% endfor %}",
    "ran out of fuel"
)]
#[case::never_begun("{%}{%}", "chat_template.jinja, line 1: syntax error: ")]
#[case::too_long(&" ".repeat(300_000), "a chat template of more than 262144 bytes is not read")]
#[case::long("{% for a in range(9999) %}{{ 'x' * 9999 }}{% endfor %}", "more than 8388608 bytes")]
fn a_template_that_fails_names_its_file_and_line(#[case] template: &str, #[case] expected: &str) {
    let folder = folder(&[("chat_template.jinja", template.to_owned())]);
    let rendered =
        ChatTemplate::beside(folder.path()).and_then(|template| template.render(&[Message::new("user", "a")]));
    let error = rendered.unwrap_err().to_string();
    assert!(error.contains(expected), "{error}");
}

#[test]
fn a_sum_of_very_many_parts_is_one() {
    let folder = folder(&[("chat_template.jinja", format!("{{{{ 1{} }}}}", "~1".repeat(130_000)))]);
    let prompt = ChatTemplate::beside(folder.path()).unwrap().render(&[]).unwrap();
    assert_eq!(prompt.len(), 130_001);
}

#[test]
fn a_template_inside_a_config_is_no_longer_than_one_beside_it() {
    let folder = folder(&[config(Some(" ".repeat(300_000).into()))]);
    let error = ChatTemplate::beside(folder.path()).unwrap_err().to_string();
    assert!(error.contains("chat_template: a chat template of more than 262144 bytes is not read"), "{error}");
}

#[test]
fn named_templates_have_a_default() {
    let named = serde_json::json!([{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]);
    let folder = folder(&[config(Some(named))]);
    assert_eq!(ChatTemplate::beside(folder.path()).unwrap().render(&[]).unwrap(), "d");
}

#[rstest]
#[case(None, "there is no chat template here")]
#[case(Some(serde_json::json!(3)), "`chat_template` is 3; known is a template")]
#[case(Some(serde_json::json!([{"name": "tool_use", "template": "t"}])), "`chat_template` is a list of 1 without `default`")]
fn a_folder_without_a_template_says_so(#[case] template: Option<serde_json::Value>, #[case] expected: &str) {
    let folder = folder(&[config(template)]);
    let error = ChatTemplate::beside(folder.path()).unwrap_err().to_string();
    assert!(error.contains(expected), "{error}");
}

#[test]
fn dates_are_formatted_as_python_does() {
    let folder = folder(&[("chat_template.jinja", "{{ strftime_now('%Y-%m-%d|%d %b %Y|%B|%A') }}".to_owned())]);
    let text = ChatTemplate::beside(folder.path()).unwrap().render(&[]).unwrap();
    let parts: Vec<&str> = text.split('|').collect();
    assert_eq!((parts[0].len(), parts[1].len()), (10, 11), "{text}");
    assert!(parts[3].ends_with("day"), "{text}");
}
