//! Prefixes in files: a session that begins anew goes on from what an earlier one has left, or from nothing.

use std::fs;
use std::path::{Path, PathBuf};

use cacheplan_runtime::{Output, Request, RuntimeError, Session, SessionOptions};
use rstest::rstest;
use tempfile::TempDir;

use crate::harness::{BUDGET, assert_alike, folder, options};

const STATES: &str = "[workload]\ncheckpoints_per_sequence = 2\n";
const INT8: &str = "[workload]\ncheckpoints_per_sequence = 2\ncheckpoint_dtype = 'int8'\n";
const DISK: &str = "[disk]\nbytes = '64MiB'\n";

fn open(model: &Path, budget: &str, disk: Option<&Path>) -> Result<Session, RuntimeError> {
    let disk = disk.map(Path::to_owned);
    Session::open(model, SessionOptions { disk, ..options(&format!("{BUDGET}{budget}")) })
}

fn keeping(model: &str, budget: &str, disk: &Path) -> Session {
    open(&folder(model), &format!("{budget}{DISK}"), Some(disk)).unwrap()
}

fn tokens(from: u32, count: u32) -> Vec<u32> {
    (from..from + count).map(|token| 1 + token * 7 % 90).collect()
}

fn generate(session: &mut Session, prompt: &[u32]) -> Output {
    session.generate(&[Request::new(prompt.to_vec(), 6)], true).unwrap().outputs.remove(0)
}

#[track_caller]
fn assert_same(ours: &Output, theirs: &Output) {
    assert_eq!(ours.tokens, theirs.tokens);
    assert_alike(ours.logits.as_ref().unwrap(), theirs.logits.as_ref().unwrap(), "logits");
}

fn files(disk: &Path) -> Vec<PathBuf> {
    let paths = fs::read_dir(disk).unwrap().map(|entry| entry.unwrap().path());
    paths.filter(|path| path.extension().is_some_and(|found| found == "cacheplan-prefix")).collect()
}

#[rstest]
#[case::whole_contexts("llama", "", [24, 32])]
#[case::windows("gemma3", "", [0, 32])]
#[case::shared_keys("gemma4", "", [0, 32])]
#[case::states("nemotron_h", STATES, [24, 32])]
#[case::other_states("bamba", STATES, [24, 32])]
fn a_session_that_begins_anew_goes_on_from_files(
    #[case] model: &str,
    #[case] budget: &str,
    #[case] cached: [usize; 2],
) {
    let disk = TempDir::new().unwrap();
    let first = tokens(0, 27);
    let plain = |prompt: &[u32]| generate(&mut open(&folder(model), budget, None).unwrap(), prompt);
    let said = generate(&mut keeping(model, budget, disk.path()), &first);
    assert_same(&said, &plain(&first));

    // The same prompt once more, of which a block at least is there, or all but the last token.
    let mut anew = keeping(model, budget, disk.path());
    let again = generate(&mut anew, &first);
    assert!(again.cached_tokens >= cached[0], "{} tokens of the prompt were found", again.cached_tokens);
    assert_same(&again, &said);
    drop(anew);

    // A second turn: all that the first has computed, and more.
    let turn = [&first[..], &said.tokens, &[3, 5, 7]].concat();
    let mut anew = keeping(model, budget, disk.path());
    let next = generate(&mut anew, &turn);
    assert_eq!(next.cached_tokens, cached[1]);
    assert_same(&next, &plain(&turn));
    assert_eq!(anew.take_notes(), [""; 0]);
}

#[test]
fn states_in_8_bits_are_kept_in_8_bits() {
    let sizes = [STATES, INT8].map(|budget| {
        let disk = TempDir::new().unwrap();
        let first = tokens(0, 27);
        let said = generate(&mut keeping("nemotron_h", budget, disk.path()), &first);
        let turn = [&first[..], &said.tokens, &[3, 5, 7]].concat();
        let next = generate(&mut keeping("nemotron_h", budget, disk.path()), &turn);
        assert_eq!(next.cached_tokens, 32);
        let logits = next.logits.unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
        assert!(logits.iter().all(|logit| logit.is_finite()));
        files(disk.path()).iter().map(|path| fs::metadata(path).unwrap().len()).min().unwrap()
    });
    assert!(sizes[1] < sizes[0], "{sizes:?}");
}

/// What is done to the files of a first session, and how often a note says so.
#[rstest]
#[case::a_byte_of_a_part(|path: &Path| change(path, |bytes| { let end = bytes.len() - 40; bytes[end] ^= 1; }))]
#[case::a_byte_of_the_sum(|path: &Path| change(path, |bytes| { let end = bytes.len() - 1; bytes[end] ^= 1; }))]
#[case::cut(|path: &Path| change(path, |bytes| bytes.truncate(bytes.len() - 7)))]
#[case::longer(|path: &Path| change(path, |bytes| bytes.push(0)))]
#[case::empty(|path: &Path| change(path, Vec::clear))]
#[case::lengths_beyond_all_memory(|path: &Path| change(path, |bytes| bytes[60..68].fill(0x7f)))]
#[case::counts_beyond_all_memory(|path: &Path| change(path, |bytes| bytes[52..60].fill(0xff)))]
#[case::another_version(|path: &Path| change(path, |bytes| bytes[16] += 1))]
#[case::another_origin(|path: &Path| change(path, |bytes| bytes[20] ^= 1))]
fn a_file_that_is_not_as_it_was_written_is_dropped_with_a_note(#[case] ruin: fn(&Path)) {
    for (model, budget) in [("llama", ""), ("nemotron_h", STATES)] {
        let disk = TempDir::new().unwrap();
        let first = tokens(0, 27);
        let said = generate(&mut keeping(model, budget, disk.path()), &first);
        let ruined = files(disk.path());
        ruined.iter().for_each(|path| ruin(path));
        let mut anew = keeping(model, budget, disk.path());
        let again = generate(&mut anew, &first);
        assert_eq!(again.cached_tokens, 0);
        assert_same(&again, &said);
        let notes = anew.take_notes();
        assert!(!notes.is_empty() && notes.iter().all(|note| note.ends_with("; dropped")), "{notes:?}");
        // What was computed anew was left anew, and serves.
        drop(anew);
        assert!(generate(&mut keeping(model, budget, disk.path()), &first).cached_tokens > 0);
    }
}

fn change(path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = fs::read(path).unwrap();
    change(&mut bytes);
    fs::write(path, bytes).unwrap();
}

#[test]
fn files_of_another_model_or_plan_are_dropped() {
    let disk = TempDir::new().unwrap();
    let first = tokens(0, 27);
    generate(&mut keeping("llama", "", disk.path()), &first);
    // Other weights behind the same config.
    let other = TempDir::new().unwrap();
    for name in ["config.json", "model.safetensors"] {
        fs::copy(folder("llama").join(name), other.path().join(name)).unwrap();
    }
    let mut anew = open(other.path(), DISK, Some(disk.path())).unwrap();
    assert_eq!(generate(&mut anew, &first).cached_tokens, 0);
    assert_eq!(anew.take_notes().len(), 1);
    drop(anew);
    // Keys in other bytes.
    let mut anew = open(other.path(), &format!("[dtypes]\nkv = 'f16'\n{DISK}"), Some(disk.path())).unwrap();
    assert_eq!(generate(&mut anew, &first).cached_tokens, 0);
    assert_eq!(anew.take_notes().len(), 1);
}

#[test]
fn files_take_no_more_than_they_may_and_the_oldest_make_way() {
    let disk = TempDir::new().unwrap();
    let one = {
        generate(&mut keeping("llama", "", disk.path()), &tokens(0, 27));
        fs::metadata(&files(disk.path())[0]).unwrap().len()
    };
    let budget = format!("[disk]\nbytes = {}\n", 2 * one + one / 2);
    let mut session = open(&folder("llama"), &budget, Some(disk.path())).unwrap();
    for start in [30, 0, 60] {
        generate(&mut session, &tokens(start, 27));
        let bytes: u64 = files(disk.path()).iter().map(|path| fs::metadata(path).unwrap().len()).sum();
        assert!(bytes <= 2 * one + one / 2, "{bytes}");
        assert_eq!(session.files().unwrap().bytes(), bytes);
    }
    drop(session);
    let found = [30, 60].map(|start| {
        let session = open(&folder("llama"), &budget, Some(disk.path())).unwrap();
        session.files().unwrap().find(&tokens(start, 27), 8).is_some()
    });
    assert_eq!(found, [false, true]);
}

#[test]
fn a_folder_is_refused_without_a_bound_where_another_has_it_and_where_nothing_can_be_kept() {
    let disk = TempDir::new().unwrap();
    let refused = |model: &str, budget: &str| open(&folder(model), budget, Some(disk.path())).unwrap_err().to_string();
    assert!(refused("llama", "").contains("--disk-bytes"));
    assert!(refused("nemotron_h", DISK).contains("checkpoint"));
    let _session = keeping("llama", "", disk.path());
    assert!(refused("llama", DISK).contains("another process"));
}
