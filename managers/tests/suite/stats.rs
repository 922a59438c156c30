//! A snapshot says what is true, in every form.

use crate::support::hybrid;
use cacheplan_managers::book::{CacheBook, Stats, StepMetadata, Work};

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
