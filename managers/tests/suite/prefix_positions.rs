//! Where checkpoints lie, and what later prompts find of them.

use crate::prefix_common::{Harness, config, tokens};
use cacheplan_managers::prefix::{Checkpoint, Extend, Source, Strategy, TreeConfig};
use rstest::rstest;

#[test]
fn e1_a_prompt_hits_below_its_last_token_and_reports_its_junction() {
    let mut h = Harness::new(TreeConfig { page: 16, ..config() }, 512, 8);
    let first = tokens(1..=48);
    assert_eq!(h.find(&first[..47]).hit, 0);
    h.insert(&first);
    assert_eq!(h.find(&tokens(1..=54)).hit, 48);
    let mut third = tokens(1..=47);
    third.push(999);
    let found = h.find(&third[..47]);
    assert_eq!((found.hit, found.branch), (0, Some(32)));
}

#[rstest]
#[case::every_block(&[16, 32, 48], false, 32)]
#[case::the_last_one(&[48], false, 0)]
#[case::the_last_one_and_the_junction(&[48], true, 32)]
fn e5_the_third_sibling_hits_where_the_second_stopped(
    #[case] kept: &[usize],
    #[case] at_junction: bool,
    #[case] hit: usize,
) {
    let mut h = Harness::new(TreeConfig { page: 16, ..config() }, 4096, 64);
    let sibling = |i: u32| [tokens(1..=32), tokens(1000 * i..=1000 * i + 31)].concat();
    for i in 1..=2 {
        let prompt = sibling(i);
        let junction = h.find(&prompt[..63]).branch.filter(|_| at_junction);
        for position in junction.into_iter().chain(kept.iter().copied()) {
            h.insert(&prompt[..position]);
        }
        h.insert_kv(&prompt);
    }
    assert_eq!(h.find(&sibling(3)[..63]).hit, hit);
}

#[test]
fn e6_siblings_see_a_checkpoint_from_its_commit_on_and_never_before() {
    let mut h = Harness::new(TreeConfig { page: 16, ..config() }, 512, 8);
    let sibling = |i: u32| [tokens(1..=32), tokens(1000 * i..=1000 * i + 15)].concat();
    // In the step that computes the shared prefix nothing is served from it.
    assert!((1..4).all(|i| h.find(&sibling(i)).hit == 0));
    h.insert(&tokens(1..=32));
    assert!((1..4).all(|i| h.find(&sibling(i)).hit == 32));
}

fn at(position: usize, source: Source) -> Checkpoint {
    Checkpoint { position, source }
}

#[rstest]
#[case::no_buffer_stores_the_end(Strategy::NO_BUFFER, 0, 1000, None, vec![at(1000, Source::End)])]
#[case::double_buffer_stores_the_aligned_end(
    Strategy::double_buffered(256), 0, 1000, None, vec![at(960, Source::Interior)]
)]
#[case::double_buffer_counts_from_the_start_of_the_extend(
    Strategy::double_buffered(256), 100, 1000, None, vec![at(996, Source::Interior)]
)]
#[case::double_buffer_takes_the_branch_instead(
    Strategy::double_buffered(256), 0, 1000, Some(192), vec![at(192, Source::Interior)]
)]
#[case::complete_takes_all(
    Strategy::complete(None), 0, 1000, Some(192),
    vec![at(192, Source::Interior), at(960, Source::Interior), at(1000, Source::End)]
)]
#[case::complete_cuts_for_a_branch_off_the_grid(
    Strategy::complete(None), 100, 1000, Some(192),
    vec![at(192, Source::Cut), at(996, Source::Interior), at(1000, Source::End)]
)]
fn a_strategy_places_checkpoints(
    #[case] strategy: Strategy,
    #[case] start: usize,
    #[case] end: usize,
    #[case] branch: Option<usize>,
    #[case] expected: Vec<Checkpoint>,
) {
    let tree = TreeConfig { chunk: 64, ..config() };
    let extend = Extend { start, end, prompt: 1000, branch };
    assert_eq!(strategy.checkpoints(&tree, extend), expected);
}

#[test]
fn a_double_buffer_tracks_nothing_in_an_extend_shorter_than_a_chunk() {
    let tree = TreeConfig { chunk: 64, ..config() };
    let extend = Extend { start: 0, end: 63, prompt: 63, branch: None };
    assert_eq!(Strategy::double_buffered(256).checkpoints(&tree, extend), []);
}

#[test]
fn checkpoints_that_no_key_could_name_are_not_planned() {
    let tree = TreeConfig { chunk: 64, page: 16, ..config() };
    let extend = Extend { start: 0, end: 1000, prompt: 1000, branch: None };
    let positions = Strategy::complete(None).checkpoints(&tree, extend);
    assert_eq!(positions, [at(960, Source::Interior)]);
}
