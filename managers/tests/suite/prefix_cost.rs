//! The cost model against the formulas of the engines.

use cacheplan_managers::prefix::Cost;

#[test]
fn f_no_tokens_cost_nothing() {
    let layers =
        [Cost::attention(512, 8, 2, 64), Cost::linear_attention(512, 4, 64, 32), Cost::feed_forward(512, 2048)];
    assert_eq!(layers.into_iter().sum::<Cost>().of(0), 0.0);
}

#[test]
fn f_attention_pays_for_projections_and_for_pairs() {
    let expected = 4 * 10 * 512 * (512 + 128) + 4 * 100 * 512;
    assert_eq!(Cost::attention(512, 8, 2, 64).of(10), f64::from(expected));
}

#[test]
fn f_linear_attention_pays_for_the_scan_and_for_projections() {
    let expected = 2 * 10 * 256 * 32 + 8 * 10 * 512 * 256;
    assert_eq!(Cost::linear_attention(512, 4, 64, 32).of(10), f64::from(expected));
}

#[test]
fn f_a_farther_ancestor_saves_strictly_more() {
    let cost = Cost::attention(512, 8, 2, 64);
    assert!(cost.between(5, 30) > cost.between(10, 30));
}

#[test]
fn f_the_saving_counts_from_the_ancestor_with_a_state_not_from_the_edge() {
    let cost = Cost::attention(512, 8, 2, 64) + Cost::linear_attention(512, 4, 64, 32);
    // An edge of 10 below a stateless edge of 10 whose parent state is at 10, against one edge of 20.
    assert_eq!(cost.between(30 - 10 - 10, 30), cost.of(30) - cost.of(30 - 20));
}
