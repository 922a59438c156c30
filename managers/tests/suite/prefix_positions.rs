//! Where checkpoints lie: the strategies, and the rules of engines whose states fill a block.

use crate::prefix_common::{Harness, config, tokens};
use cacheplan_managers::book::prefix::{BlockAligned, Checkpoint, Extend, Interior, Source, Strategy, TreeConfig};
use rstest::rstest;

fn aligned(block: usize, drops_last: bool) -> BlockAligned {
    BlockAligned { block, drops_last, look_ahead: 1 }
}

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

#[test]
fn e2_a_forward_stops_at_the_junction() {
    assert_eq!(aligned(16, false).schedule(48, 0, 8192, false, Some(32)), 32);
}

fn blocks(positions: &[usize], block: usize) -> Vec<usize> {
    positions.iter().map(|p| p / block - 1).collect()
}

#[rstest]
#[case::e3_dense(None, None, (0..16).collect())]
#[case::e3_every_block(Some(16), None, (0..16).collect())]
#[case::e3_every_64(Some(64), None, vec![3, 7, 11, 14, 15])]
#[case::e3_replay_only(Some(0), None, vec![14])]
#[case::e4_boundary(Some(0), Some(96), vec![5, 14])]
#[case::e4_boundary_off_the_grid(Some(0), Some(100), vec![5, 14])]
#[case::e4_boundary_and_interval(Some(64), Some(96), vec![3, 5, 7, 11, 14, 15])]
#[case::e4_boundary_out_of_range(Some(0), Some(4096), vec![14])]
fn retention_keeps(#[case] interval: Option<usize>, #[case] branch: Option<usize>, #[case] expected: Vec<usize>) {
    let kept = aligned(16, false).kept(256, interval, branch);
    assert_eq!(blocks(&kept, 16), expected);
}

#[rstest]
#[case::dense(None, false, 32)]
#[case::replay_only(Some(0), false, 0)]
#[case::replay_and_pin(Some(0), true, 32)]
fn e5_the_third_sibling_hits_where_the_second_stopped(
    #[case] interval: Option<usize>,
    #[case] pin: bool,
    #[case] hit: usize,
) {
    let rule = aligned(16, false);
    let mut h = Harness::new(TreeConfig { page: 16, ..config() }, 4096, 64);
    let sibling = |i: u32| [tokens(1..=32), tokens(1000 * i..=1000 * i + 31)].concat();
    for i in 1..=2 {
        let prompt = sibling(i);
        let branch = h.find(&prompt[..63]).branch.filter(|_| pin);
        for position in rule.kept(prompt.len(), interval, branch) {
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

#[rstest]
#[case::e7_dropped_unit(true, 128, vec![64, 96], 96)]
#[case::e8_look_ahead_only(false, 129, vec![128], 128)]
fn replay_states_serve_the_resend(
    #[case] drops_last: bool,
    #[case] prompt: u32,
    #[case] kept: Vec<usize>,
    #[case] resend: usize,
) {
    let rule = aligned(32, drops_last);
    assert_eq!(rule.kept(prompt as usize, Some(0), None), kept);
    let mut h = Harness::new(TreeConfig { page: 32, ..config() }, 512, 8);
    for &position in &kept {
        h.insert(&tokens(1..=position as u32));
    }
    assert_eq!(h.find(&tokens(1..=prompt - 1)).hit, resend);
    assert_eq!(h.find(&tokens(1..=prompt + 40)).hit, resend, "a longer sibling");
}

#[rstest]
#[case(127, vec![64])]
#[case(128, vec![64, 96])]
#[case(129, vec![96])]
#[case(33, vec![0])]
#[case(20, vec![0])]
fn e9_replay_positions_of_a_draft_that_drops_a_unit(#[case] prompt: usize, #[case] expected: Vec<usize>) {
    assert_eq!(aligned(32, true).replay_positions(prompt), expected);
}

#[rstest]
#[case(2002, 1600, false, 1, 1600)]
#[case(2002, 1600, true, 1, 0)]
#[case(3602, 1600, false, 1, 3200)]
#[case(3602, 1600, true, 1, 1600)]
#[case(3200, 1600, false, 1, 1600)]
#[case(16, 16, false, 1, 0)]
#[case(17, 16, false, 1, 16)]
#[case(3601, 16, false, 2, 3584)]
fn e10_the_last_position(
    #[case] prompt: usize,
    #[case] block: usize,
    #[case] drops_last: bool,
    #[case] look_ahead: usize,
    #[case] expected: usize,
) {
    let rule = BlockAligned { block, drops_last, look_ahead };
    assert_eq!(rule.last_position(prompt), expected);
}

#[rstest]
#[case(0, 100, 88, 8, 64, 16, false)]
#[case(0, 100, 96, 8, 64, 16, true)]
#[case(8, 100, 96, 8, 64, 16, false)]
#[case(15360, 16896, 16768, 128, 1536, 16, false)]
#[case(15360, 16960, 16896, 128, 1536, 16, true)]
#[case(15360, 16960, 16768, 128, 1536, 16, true)]
#[case(16064, 18433, 18432, 128, 1536, 16, false)]
fn e11_an_interior_state_is_kept_only_where_it_can_be_told_apart(
    #[case] start: usize,
    #[case] end: usize,
    #[case] position: usize,
    #[case] hash_unit: usize,
    #[case] block: usize,
    #[case] align: usize,
    #[case] expected: bool,
) {
    let at = Interior { start, end, position, hash_unit, align };
    assert_eq!(aligned(block, false).keeps_interior(at), expected);
}

#[rstest]
#[case(2002, 2002, false, 2002)]
#[case(3602, 2000, false, 1600)]
#[case(3602, 3602, true, 3602)]
#[case(2002, 2002, true, 2002)]
#[case(3602, 512, true, 0)]
#[case(3602, 1700, true, 1600)]
fn e12_with_interior_states_only_the_budget_cuts(
    #[case] prompt: usize,
    #[case] budget: usize,
    #[case] drops_last: bool,
    #[case] expected: usize,
) {
    assert_eq!(aligned(1600, drops_last).schedule(prompt, 0, budget, true, None), expected);
}

#[test]
fn e13_without_interior_states_a_forward_stops_at_the_last_position() {
    assert_eq!(aligned(1600, true).schedule(3602, 0, 3602, false, None), 1600);
    assert_eq!(aligned(1600, false).schedule(3602, 0, 3602, false, None), 3200);
}

#[test]
fn e14_a_resumed_forward_stops_at_the_next_boundary() {
    assert_eq!(aligned(1600, false).schedule(3602, 1984, 8192, false, None), 1216);
}

#[rstest]
#[case(2002, &[364, 2002])]
#[case(3602, &[1600, 1000, 3602])]
fn e15_every_stored_state_has_absorbed_what_it_claims(
    #[case] prompt: usize,
    #[case] budgets: &[usize],
    #[values(1536, 1600, 12288)] block: usize,
    #[values(0, 800, 1200, 1600, 2000)] first: usize,
    #[values(false, true)] drops_last: bool,
    #[values(false, true)] interior: bool,
) {
    let rule = aligned(block, drops_last);
    let mut absorbed = 0;
    let endless = std::iter::repeat(&prompt);
    for &budget in Some(&first).filter(|&&f| f > 0).into_iter().chain(budgets).chain(endless) {
        let step = rule.schedule(prompt, absorbed, budget, interior, None);
        absorbed += step;
        assert!(absorbed == prompt || absorbed.is_multiple_of(block), "intermediate ends lie on the grid");
        if absorbed == prompt {
            break;
        }
        assert!(step > 0 || budget < block, "a whole budget always makes progress");
    }
    assert_eq!(absorbed, prompt);
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
