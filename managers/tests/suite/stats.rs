//! A snapshot says what is true, in every form.

use crate::support::hybrid;
use cacheplan_managers::book::{CacheBook, Stats, StepMetadata, Work};
use cacheplan_managers::prefix::{Key, Namespace, PrefixReuse, Strategy, TenantId};

fn used() -> Stats {
    let mut book = CacheBook::new(&hybrid().host(3000).plan()).unwrap();
    let (parked, live) = (book.admit(6).unwrap(), book.admit(9).unwrap());
    for sequence in [parked, live] {
        book.step(&[Work { sequence, tokens: 6 }], &mut StepMetadata::default()).unwrap();
    }
    book.offload(parked).unwrap();
    let _set_aside = book.set_host_aside(1000).unwrap();
    book.offload(live).unwrap_err();
    book.admit(64).unwrap_err();
    book.stats()
}

#[test]
fn a_snapshot_survives_json() {
    let stats = used();
    assert_eq!(serde_json::from_str::<Stats>(&serde_json::to_string(&stats).unwrap()).unwrap(), stats);
    let old = r#"{"pools": [], "sequences": {"resident": 0, "preempted": 0, "offloaded": 0}}"#;
    assert_eq!(serde_json::from_str::<Stats>(old).unwrap().host, None);
}

#[test]
fn metrics_name_every_pool_and_the_host_tier() {
    let text = used().prometheus();
    for line in [
        "cacheplan_pool_used_units{pool=\"kv_paged.2\"} 3",
        "cacheplan_pool_high_water_units{pool=\"kv_paged.2\"} 5",
        "cacheplan_pool_refused_total{pool=\"kv_paged.2\"} 1",
        "cacheplan_pool_used_units{pool=\"slots.live\"} 1",
        "cacheplan_planned_used_units{pool=\"kv_paged.2\"} 3",
        "cacheplan_sequences{state=\"offloaded\"} 1",
        "cacheplan_host_capacity_bytes 3000",
        "cacheplan_host_used_bytes 2276",
        "cacheplan_host_high_water_bytes 2276",
        "cacheplan_host_refused_total 1",
    ] {
        assert!(text.lines().any(|found| found == line), "`{line}` is not in\n{text}");
    }
    let mut plain = used();
    plain.host = None;
    assert!(!plain.prometheus().contains("cacheplan_host"));
}

#[test]
fn the_table_fits_a_terminal() {
    let table = used().to_string();
    assert!(table.lines().all(|line| line.len() <= 100), "{table}");
    assert!(table.contains("host tier: 2276 of 3000 bytes used, at most 2276; 1 refused"), "{table}");
}

/// What is used of every pool of a plan, whatever hands out its units.
#[test]
fn a_resource_of_the_plan_finds_its_pool_by_its_id() {
    let plan = hybrid().plan();
    let mut book = CacheBook::new(&plan).unwrap();
    let sequence = book.admit(9).unwrap();
    book.step(&[Work { sequence, tokens: 9 }], &mut StepMetadata::default()).unwrap();
    book.checkpoint(sequence).unwrap();
    let stats = book.stats();
    let slots: u64 = stats.pools.iter().filter(|pool| pool.id.starts_with("slots.")).map(|pool| pool.used).sum();
    assert_eq!(slots, 2);
    for resource in &plan.resources {
        let (found, planned) = (stats.planned_pool(&resource.pool).unwrap(), plan.pool(&resource.pool).unwrap());
        assert_eq!(
            (found.units, found.reserved, found.unit_bytes),
            (planned.units, planned.reserved, planned.unit_bytes)
        );
        let used = match stats.pools.iter().find(|pool| pool.id == resource.pool) {
            Some(blocks) => blocks.used,
            None => slots,
        };
        assert_eq!(found.used, used, "{}", resource.name);
    }
    assert_eq!(stats.planned.len(), plan.pools.len());
    assert_eq!(stats.planned_pool("slots.live"), None);
}

#[test]
fn a_snapshot_has_what_reuse_achieved_while_it_is_there() {
    let mut setup = hybrid();
    setup.slots.checkpoints = setup.slots.checkpoints.max(2);
    let plan = setup.plan();
    let mut book = CacheBook::new(&plan).unwrap();
    assert_eq!(book.stats().prefixes, None);
    let mut reuse = PrefixReuse::new(&plan, &mut book, Strategy::complete(None)).unwrap();
    let (namespace, prompt) = (Namespace::default(), [1, 2, 3, 4, 5, 6]);
    let lease = reuse.admit(&mut book, Key { namespace: &namespace, tokens: &prompt }, TenantId(0)).unwrap();
    assert_eq!(book.stats().prefixes, Some(reuse.metrics()));
    assert_eq!(reuse.metrics().prompt_tokens, 6);
    assert!(book.stats().to_string().contains("prefixes: 0 of 6 prompt tokens were cached\n"));
    reuse.abandon(lease).unwrap();
    drop(reuse);
    assert_eq!(book.stats().prefixes, None);
}
