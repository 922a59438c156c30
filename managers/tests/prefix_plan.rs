//! Simulations take their sizes from plans.

use cacheplan_managers::book::simulate::{Policy, Scenario, Workload, simulate};
use rstest::rstest;

#[rstest]
fn pages_of_a_plan_cost_little_of_the_hit_rate(#[values(16, 32, 64)] page: usize) {
    let requests = &Workload::Chat.requests()[..400];
    let rate = |policy, page| simulate(requests, Scenario { policy, page, ..Scenario::default() }).unwrap().hit_rate;
    let (exact, paged) = (rate(Policy::Coverage, 1), rate(Policy::Coverage, page));
    assert!(paged > 0.9 * exact, "{paged} against {exact}");
    assert!(paged >= rate(Policy::DoubleBuffered, page));
}

#[test]
fn without_states_every_policy_hits_what_is_resident() {
    let requests = &Workload::Rag.requests()[..200];
    let scenario = Scenario { states: false, page: 16, ..Scenario::default() };
    let report = simulate(requests, scenario).unwrap();
    assert_eq!(report.hit_rate, report.kv_hit_rate);
    assert!(report.hit_rate > 0.0);
}
