//! Every rule of the checker, with a tree in which that rule alone, or that rule first, is broken.

use rstest::rstest;

use crate::book::{BlockId, SlotId};
use crate::prefix::check::Census;
use crate::prefix::config::{TenantId, TreeConfig};
use crate::prefix::host::{HostBlockId, HostSlotId, HostTier};
use crate::prefix::insert::{Insert, WindowSpan};
use crate::prefix::key::{Key, Namespace, Token};
use crate::prefix::lock::Hold;
use crate::prefix::node::{Component, NIL, Node};
use crate::prefix::tree::{Released, Tree};

const PAGE: usize = 2;

/// Computes `tokens` with units that are numbered from `first`, and inserts them.
fn insert(tree: &mut Tree, salt: &str, tokens: &[Token], first: u32, tenant: u16) {
    let namespace = Namespace { salt: salt.into(), ..Namespace::default() };
    let blocks: Vec<BlockId> = (first..).map(BlockId).take(tokens.len() / PAGE).collect();
    let from = tokens.len() / 2 / PAGE * PAGE;
    let window = WindowSpan { from, blocks: &blocks[from / PAGE..] };
    let insert = Insert {
        key: Key { namespace: &namespace, tokens },
        blocks: &blocks,
        owned: 0,
        state: Some(SlotId(first)),
        window: tree.config().window.map(|_| window),
        tenant: TenantId(tenant),
    };
    let _ = tree.insert(&insert, &mut Released::default()).unwrap();
}

/// A tree with a span on the host, a fork, tombstones, windows, and two tenants.
fn tree() -> Tree {
    let host = Some(HostTier { blocks: 8, slots: 4, windows: 8 });
    let config = TreeConfig { page: PAGE, window: Some(2), host, tenants: vec![1, 1], ..TreeConfig::default() };
    let mut tree = Tree::new(config).unwrap();
    insert(&mut tree, "", &[50, 51, 52, 53], 50, 0);
    let _ = tree.evict_kv(4, &mut Released::default());
    insert(&mut tree, "", &[1, 2, 3, 4, 5, 6, 7, 8], 10, 0);
    insert(&mut tree, "", &[1, 2, 9, 10], 20, 1);
    insert(&mut tree, "other", &[60, 61], 60, 0);
    tree
}

/// The node whose key starts with a token.
fn at(tree: &Tree, first: Token) -> u32 {
    tree.live().into_iter().find(|&node| tree.nodes[node].key.first() == Some(&first)).unwrap()
}

fn node(tree: &mut Tree, first: Token) -> &mut Node {
    let node = at(tree, first);
    &mut tree.nodes[node]
}

fn root(tree: &Tree, salt: &str) -> u32 {
    tree.roots[&Namespace { salt: salt.into(), ..Namespace::default() }]
}

#[track_caller]
fn lock(tree: &mut Tree, tokens: &[Token]) {
    let namespace = Namespace::default();
    let found = tree.match_prefix(Key { namespace: &namespace, tokens });
    assert_eq!(found.hit, tokens.len());
    let _ = tree.lock(&found, Hold::PathAndState).unwrap();
}

type Damage = fn(&mut Tree);

/// What breaks a rule, and the rule.
const DAMAGES: &[(&str, Damage)] = &[
    ("a namespace and its root name each other", |tree| {
        let root = root(tree, "");
        tree.namespaces.remove(&root);
    }),
    ("a namespace and its root name each other", |tree| {
        tree.namespaces.insert(99, Default::default());
    }),
    ("a namespace and its root name each other", |tree| {
        let child = at(tree, 60);
        *tree.roots.values_mut().next().unwrap() = child;
    }),
    ("parent and child agree", |tree| node(tree, 60).parent = root(tree, "")),
    ("parent and child agree", |tree| node(tree, 60).first_child = 999),
    ("parent and child agree", |tree| {
        let node = at(tree, 9);
        tree.nodes[node].next_sibling = node;
    }),
    ("parent and child agree", |tree| {
        let node = at(tree, 60);
        tree.nodes[node].prev_sibling = node;
    }),
    ("parent and child agree", |tree| {
        let (node, top) = (at(tree, 5), at(tree, 1));
        tree.nodes[node].first_child = top;
    }),
    ("only roots have no key", |tree| node(tree, 60).key = Box::default()),
    ("keys are whole pages", |tree| node(tree, 60).key = [60].into()),
    ("a child starts where its parent ends", |tree| node(tree, 60).end += 2),
    ("a tenant is configured", |tree| node(tree, 60).tenant = TenantId(2)),
    ("nothing was used in the future", |tree| node(tree, 1).stamp = tree.clock + 1),
    ("nothing was used in the future", |tree| {
        let (node, now) = (at(tree, 60), tree.clock);
        tree.nodes[node].state.as_mut().unwrap().used = now + 1;
    }),
    ("siblings differ in their first page", |tree| {
        let node = at(tree, 9);
        tree.edges.remove(&tree.nodes, node);
        tree.nodes[node].key = [3, 4].into();
        tree.edges.insert(&tree.nodes, node);
    }),
    ("a child is stored under its first page", |tree| {
        let node = at(tree, 9);
        tree.edges.remove(&tree.nodes, node);
    }),
    ("one edge per node", |tree| {
        let node = at(tree, 9);
        tree.edges.insert(&tree.nodes, node);
    }),
    ("children are counted", |tree| node(tree, 1).children += 1),
    ("children on the device are counted", |tree| node(tree, 1).device_children -= 1),
    ("device spans hang below device spans", |tree| {
        let root = root(tree, "");
        tree.nodes[root].device_children -= 1;
        node(tree, 1).kv = Box::default();
    }),
    ("no root without children", |tree| {
        tree.root_or_new(&Namespace { salt: "new".into(), ..Namespace::default() });
    }),
    ("no parent is older than its child", |tree| node(tree, 1).stamp = 0),
    ("KV covers the key, on the device or on the host", |tree| node(tree, 5).kv = [BlockId(12)].into()),
    ("KV covers the key, on the device or on the host", |tree| node(tree, 60).host_kv = [HostBlockId(7)].into()),
    ("a state on the device is there alone, and with its span", |tree| node(tree, 60).host_state = Some(HostSlotId(3))),
    ("a window covers the key or is a tombstone", |tree| node(tree, 5).window = [BlockId(12)].into()),
    ("a window on the device is there alone, and with its span", |tree| {
        node(tree, 60).host_window = [HostBlockId(7)].into();
    }),
    ("locked children are counted", |tree| node(tree, 1).locked_children = 1),
    ("whatever holds a window or a state holds the path", |tree| node(tree, 60).window_pins = 1),
    ("whatever holds a window or a state holds the path", |tree| node(tree, 60).state_pins = 1),
    ("a state is held by a receipt of its node", |tree| {
        lock(tree, &[1, 2, 9, 10]);
        node(tree, 9).state_pins += 1;
    }),
    ("a window is held by a receipt of its node or of a child's window", |tree| {
        lock(tree, &[1, 2, 9, 10]);
        node(tree, 9).window_pins += 1;
    }),
    ("exactly the evictable nodes are listed", |tree| {
        let node = at(tree, 60);
        tree.nodes.unlink(Component::Kv, node);
    }),
    ("exactly the evictable nodes are listed", |tree| {
        let node = at(tree, 1);
        tree.nodes.push_front(0, Component::Kv, node);
    }),
    ("exactly the evictable nodes are listed", |tree| node(tree, 60).state.as_mut().unwrap().rank += 1),
    ("usage equals its recomputation", |tree| tree.usage.host_kv.protected += 1),
    ("tenants equal their recomputation", |tree| tree.tenants[1][Component::State as usize] -= 1),
    ("every node hangs below a root", |tree| {
        tree.nodes.insert(Node::new(NIL, 0, TenantId(0)));
    }),
    ("a list is linked both ways through live nodes", |tree| node(tree, 5).links[Component::Kv as usize].prev = NIL),
    ("a list knows its end", |tree| node(tree, 60).links[Component::Kv as usize].next = NIL),
    ("a KV block has one place", |tree| node(tree, 60).kv[0] = BlockId(10)),
    ("a window block has one place", |tree| node(tree, 60).window[0] = BlockId(12)),
    ("a slot has one place", |tree| node(tree, 60).state.as_mut().unwrap().slot = SlotId(10)),
    ("the host is all there", |tree| {
        tree.host.blocks.pop();
    }),
    ("the host is all there", |tree| {
        tree.host.slots.pop();
    }),
    ("the host is all there", |tree| {
        tree.host.windows.pop();
    }),
    ("a host block has one place", |tree| tree.host.blocks[0] = tree.host.blocks[1]),
    ("a host slot has one place", |tree| tree.host.slots[0] = tree.host.slots[1]),
    ("a host window block has one place", |tree| tree.host.windows[0] = tree.host.windows[1]),
    ("no host unit lies beyond the tier", |tree| tree.host.blocks[0] = HostBlockId(8)),
    ("no host unit lies beyond the tier", |tree| tree.host.slots[0] = HostSlotId(4)),
    ("no host unit lies beyond the tier", |tree| tree.host.windows[0] = HostBlockId(8)),
];

#[test]
fn a_broken_rule_is_found_by_its_name() {
    let mut whole = tree();
    whole.check().unwrap();
    lock(&mut whole, &[1, 2, 3, 4, 5, 6, 7, 8]);
    whole.check().unwrap();
    for (case, (rule, damage)) in DAMAGES.iter().enumerate() {
        let mut tree = tree();
        damage(&mut tree);
        assert_eq!(tree.check().map_err(|violation| violation.rule), Err(*rule), "case {case}");
    }
}

#[test]
fn components_that_are_not_configured_are_found() {
    for (window, states) in [(None, true), (Some(4), false)] {
        let mut tree = tree();
        (tree.config.window, tree.config.states) = (window, states);
        assert_eq!(tree.check().unwrap_err().rule, "a node has no more than the tree is configured for");
    }
}

#[rstest]
#[case::all_there(&[3], "")]
#[case::lost(&[], "every KV block is in one place")]
#[case::in_two_places(&[2], "every KV block is in one place")]
#[case::not_there(&[4], "every KV block is in one place")]
fn an_audit_finds_what_is_in_two_places_or_in_none(#[case] free: &[u32], #[case] rule: &str) {
    let ids = |ids: &[u32]| ids.iter().copied().map(BlockId).collect::<Vec<_>>();
    let census = Census { blocks: ids(&[0, 1, 2]), ..Census::default() };
    let found = census.audit((4, &ids(free)), (0, &[]), (0, &[])).map_err(|violation| violation.rule);
    assert_eq!(found, if rule.is_empty() { Ok(()) } else { Err(rule) });
}

#[test]
fn an_audit_looks_at_every_pool() {
    let found = |window, slots| Census::default().audit((0, &[]), (window, &[]), (slots, &[])).unwrap_err().rule;
    assert_eq!(found(1, 0), "every window block is in one place");
    assert_eq!(found(0, 1), "every slot is in one place");
}
