//! A serving loop with pools, requests and a dictionary of everything that was cached.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use crate::book::{BlockId, SlotId};
use crate::prefix::cache::{Final, Lease, PrefixCache, Progress};
use crate::prefix::{
    Extend, HostBlockId, HostSlotId, Key, Load, Match, Namespace, Offload, Released, Strategy, TenantId, Token,
    TreeConfig, WindowSpan,
};

mod units;

const BLOCKS: u32 = 96;
const SLOTS: u32 = 14;
const REQUESTS: usize = 4;
const HOST: usize = 40;

#[derive(Clone, Copy, Debug)]
pub(crate) enum Op {
    Start(u64),
    Prefill(u8, u8),
    Decode(u8, u8),
    Finish(u8),
    Abort(u8),
    Drop(u8),
    EvictKv(u8),
    EvictState(u8),
    EvictWindow(u8),
    Touch(u64),
    EvictHost(u8),
}

/// What a unit was computed from: the namespace and all tokens up to a position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Content {
    Poison,
    Prefix { len: usize, hash: u64 },
}

fn content(namespace: &Namespace, tokens: &[Token]) -> Content {
    let mut hasher = DefaultHasher::new();
    (namespace, tokens).hash(&mut hasher);
    Content::Prefix { len: tokens.len(), hash: hasher.finish() }
}

impl Content {
    fn hash(self) -> u64 {
        match self {
            Self::Prefix { hash, .. } => hash,
            Self::Poison => panic!("poison was read"),
        }
    }
}

fn hash(namespace: &Namespace, tokens: &[Token]) -> u64 {
    content(namespace, tokens).hash()
}

struct Request {
    lease: Option<Lease>,
    namespace: usize,
    live: SlotId,
    prompt: usize,
    /// The prompt and what was decoded after it.
    tokens: Vec<Token>,
    /// How many of them the live slot has absorbed.
    absorbed: usize,
    blocks: Vec<BlockId>,
}

pub(crate) struct World {
    cache: PrefixCache,
    config: TreeConfig,
    namespaces: [Namespace; 2],
    requests: Vec<Request>,
    free_blocks: Vec<BlockId>,
    free_window: Vec<BlockId>,
    free_slots: Vec<SlotId>,
    blocks: Vec<Content>,
    window: Vec<Content>,
    slots: Vec<Content>,
    host_blocks: Vec<Content>,
    host_slots: Vec<Content>,
    host_windows: Vec<Content>,
    /// What the tree should have: for every page-aligned prefix, by content, the unit that it was last given.
    kv_of: HashMap<u64, BlockId>,
    window_of: HashMap<u64, BlockId>,
    state_of: HashMap<u64, SlotId>,
    host_kv_of: HashMap<u64, HostBlockId>,
    host_state_of: HashMap<u64, HostSlotId>,
    host_window_of: HashMap<u64, HostBlockId>,
    next_token: Token,
}

impl World {
    pub(crate) fn new(config: TreeConfig, strategy: Strategy) -> Self {
        Self {
            cache: PrefixCache::new(config.clone(), strategy).unwrap(),
            config,
            namespaces: [Namespace::default(), Namespace { salt: "other".into(), adapter: String::new() }],
            requests: Vec::new(),
            free_blocks: (0..BLOCKS).map(BlockId).collect(),
            free_window: (0..BLOCKS).map(BlockId).collect(),
            free_slots: (0..SLOTS).map(SlotId).collect(),
            blocks: vec![Content::Poison; BLOCKS as usize],
            window: vec![Content::Poison; BLOCKS as usize],
            slots: vec![Content::Poison; SLOTS as usize],
            host_blocks: vec![Content::Poison; HOST],
            host_slots: vec![Content::Poison; HOST],
            host_windows: vec![Content::Poison; HOST],
            kv_of: HashMap::new(),
            window_of: HashMap::new(),
            state_of: HashMap::new(),
            host_kv_of: HashMap::new(),
            host_state_of: HashMap::new(),
            host_window_of: HashMap::new(),
            next_token: 1000,
        }
    }

    pub(crate) fn apply(&mut self, op: Op) {
        match op {
            Op::Start(seed) => self.start(seed),
            Op::Prefill(r, n) => self.with(r, |world, request| world.prefill(request, usize::from(n) % 24 + 1)),
            Op::Decode(r, n) => self.with(r, |world, request| world.decode(request, usize::from(n) % 12 + 1)),
            Op::Finish(r) => self.with(r, Self::finish),
            Op::Abort(r) => self.with(r, Self::abort),
            Op::Drop(r) => self.with(r, Self::lose),
            Op::EvictKv(n) => self.evict(|cache, out| cache.evict_kv(usize::from(n) % 16 + 1, out)),
            Op::EvictState(n) => self.evict(|cache, out| cache.evict_state(usize::from(n) % 3 + 1, out)),
            Op::EvictWindow(n) => self.evict(|cache, out| cache.evict_window(usize::from(n) % 16 + 1, out)),
            Op::EvictHost(n) => self.cache.evict_host(usize::from(n) % 16, usize::from(n) % 3),
            Op::Touch(seed) => {
                let (namespace, tokens) = self.prompt(seed);
                self.look_up(namespace, &tokens);
            }
        }
    }

    /// Ends every request and empties the tree: everything must come back.
    pub(crate) fn drain(&mut self) {
        while !self.requests.is_empty() {
            self.with(0, Self::abort);
            self.audit();
        }
        self.evict(|cache, out| cache.evict_kv(usize::MAX, out));
        self.audit();
        self.cache.evict_host(usize::MAX, usize::MAX);
        self.audit();
        assert_eq!(self.cache.tree().usage(), Default::default());
        assert_eq!((self.free_blocks.len(), self.free_slots.len()), (BLOCKS as usize, SLOTS as usize));
        assert_eq!(self.free_window.len(), BLOCKS as usize);
        assert!(self.kv_of.is_empty() && self.state_of.is_empty() && self.window_of.is_empty());
    }

    /// What the host loses is not announced: nobody else uses those units.
    fn forget_lost_host_units(&mut self) {
        let census = self.cache.tree().census();
        self.host_kv_of.retain(|_, block| census.host_blocks.contains(block));
        self.host_state_of.retain(|_, slot| census.host_slots.contains(slot));
        self.host_window_of.retain(|_, block| census.host_windows.contains(block));
    }

    pub(crate) fn audit(&mut self) {
        self.forget_lost_host_units();
        let tree = self.cache.tree();
        tree.check().unwrap();
        let census = tree.census();
        assert_eq!(census.host_blocks.len(), self.host_kv_of.len());
        assert_eq!(census.host_slots.len(), self.host_state_of.len());
        assert_eq!(census.host_windows.len(), self.host_window_of.len());
        let page = self.config.page;
        let private = |request: &Request| {
            let owned = request.lease.as_ref().map_or(0, Lease::owned) / page;
            request.blocks[owned..].to_vec()
        };
        let mut blocks = self.free_blocks.clone();
        blocks.extend(self.requests.iter().flat_map(private));
        let mut slots = self.free_slots.clone();
        slots.extend(self.requests.iter().map(|request| request.live));
        census.audit((BLOCKS, &blocks), (BLOCKS, &self.free_window), (SLOTS, &slots)).unwrap();
        let usage = tree.usage();
        assert_eq!((usage.kv.evictable + usage.kv.protected) / page, self.kv_of.len());
        assert_eq!(usage.states.evictable + usage.states.protected, self.state_of.len());
    }

    /// A prompt out of few tokens, so that prompts share prefixes and turn off in the middle of edges.
    fn prompt(&mut self, seed: u64) -> (usize, Vec<Token>) {
        let mut bits = seed;
        let mut draw = |n: u64| {
            bits = bits.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (bits >> 33) % n
        };
        let namespace = usize::from(draw(8) == 0);
        let mut tokens = Vec::new();
        match draw(24) {
            0 => return (namespace, tokens),
            1 => return (namespace, vec![draw(3) as Token]),
            // The largest token, over and over.
            2 => return (namespace, vec![Token::MAX; draw(30) as usize + 1]),
            _ => {}
        }
        for segment in 0..draw(4) + 1 {
            let variant = draw(2);
            let len = [4, 7, 12][draw(3) as usize % (1 + segment as usize).min(3)];
            tokens.extend((0..len).map(|i| (segment * 100 + variant * 50 + i) as Token));
        }
        (namespace, tokens)
    }

    fn with(&mut self, index: u8, act: impl FnOnce(&mut Self, Request)) {
        if !self.requests.is_empty() {
            let index = usize::from(index) % self.requests.len();
            let request = self.requests.swap_remove(index);
            act(self, request);
        }
    }

    /// Looks up and compares with the dictionary; returns what a hit would serve.
    fn look_up(&self, namespace: usize, prompt: &[Token]) -> Match {
        let key = Key { namespace: &self.namespaces[namespace], tokens: prompt };
        let found = self.cache.lookup(key);
        assert_eq!(found, self.cache.lookup(key), "a lookup changes nothing");
        let page = self.config.page;
        let hash_at = |len: usize| hash(key.namespace, &prompt[..len]);
        let (mut kv, mut hit, mut run, mut rooted, mut resident) = (0, 0, 0, true, 0);
        for len in (page..prompt.len()).step_by(page) {
            let on_device = self.kv_of.contains_key(&hash_at(len));
            if !on_device && !self.host_kv_of.contains_key(&hash_at(len)) {
                break;
            }
            kv = len;
            if on_device {
                resident = len;
            }
            let windowed =
                self.window_of.contains_key(&hash_at(len)) || self.host_window_of.contains_key(&hash_at(len));
            run = if windowed { run + page } else { 0 };
            rooted &= windowed;
            let legal = self.config.window.is_none_or(|window| rooted || run >= window);
            let stated = self.state_of.contains_key(&hash_at(len)) || self.host_state_of.contains_key(&hash_at(len));
            if legal && (!self.config.states || stated) {
                hit = len;
            }
        }
        assert_eq!((found.hit, found.kv_hit, found.resident), (hit, kv, resident), "of {prompt:?}");
        if let Some(branch) = found.branch {
            assert!(branch.is_multiple_of(self.config.grid()) && hit < branch && branch <= kv);
        }
        if let Some(slot) = found.host_state {
            let expected = content(key.namespace, &prompt[..hit]);
            assert_eq!(self.host_slots[slot.0 as usize], expected, "so is one on the host");
        }
        if let Some(slot) = found.state {
            let expected = content(key.namespace, &prompt[..hit]);
            assert_eq!(self.slots[slot.0 as usize], expected, "a state is served at the length it absorbed");
        }
        found
    }

    fn start(&mut self, seed: u64) {
        if self.requests.len() == REQUESTS {
            return;
        }
        let (namespace, tokens) = self.prompt(seed);
        let Some(live) = self.take_slot() else { return };
        let found = self.look_up(namespace, &tokens);
        let found = self.bring_back(&found, namespace, &tokens, seed);
        let key = Key { namespace: &self.namespaces[namespace], tokens: &tokens };
        let tenant = TenantId((seed >> 40) as u16 % self.config.tenants.len() as u16);
        let mut lease = self.cache.admit(key, &found, live, tenant).unwrap();
        let mut blocks = Vec::new();
        self.cache.held_blocks(&lease, &mut blocks);
        for (i, block) in blocks.iter().enumerate() {
            let expected = content(key.namespace, &tokens[..(i + 1) * self.config.page]);
            assert_eq!(self.blocks[block.0 as usize], expected, "a block is served where it was computed");
        }
        if let Some(width) = self.config.window {
            let mut window = Vec::new();
            let from = self.cache.held_window(&lease, &mut window);
            assert!(from == 0 || found.hit - from >= width, "a hit holds the window that it reads");
            assert_eq!(window.len(), (found.hit - from) / self.config.page);
            for (i, block) in window.iter().enumerate() {
                let expected = content(key.namespace, &tokens[..from + (i + 1) * self.config.page]);
                assert_eq!(self.window[block.0 as usize], expected, "a window is served where it was computed");
            }
        }
        self.slots[live.0 as usize] = match (lease.source(), lease.host_source()) {
            (Some(source), None) => self.slots[source.0 as usize],
            (None, Some(source)) => self.host_slots[source.0 as usize],
            (None, None) => content(key.namespace, &[]),
            (Some(_), Some(_)) => panic!("two sources"),
        };
        if seed.is_multiple_of(3) {
            self.cache.copied(&mut lease).unwrap();
        }
        let absorbed = if self.config.states { found.hit } else { lease.owned() };
        self.requests.push(Request {
            absorbed,
            lease: Some(lease),
            namespace,
            live,
            prompt: tokens.len(),
            tokens,
            blocks,
        });
    }

    /// Loads what of a hit lies on the host, or does without it.
    fn bring_back(&mut self, found: &Match, namespace: usize, tokens: &[Token], seed: u64) -> Match {
        let pages = found.hit.saturating_sub(found.resident) / self.config.page;
        let (mut blocks, mut window) = (Vec::new(), Vec::new());
        let held = self.cache.hold_to_load(found).unwrap();
        if !seed.is_multiple_of(5) {
            blocks.extend((0..pages).map_while(|_| self.take_block()));
            window.extend((0..found.host_window / self.config.page).map_while(|_| self.take_window()));
        }
        let mut loads = Vec::new();
        let loaded = blocks.len() == pages && self.cache.load(found, &blocks, &window, &mut loads).is_ok();
        self.cache.let_go(held).unwrap();
        if loaded {
            for load in loads {
                match load {
                    Load::Block { from, to } => {
                        self.blocks[to.0 as usize] = self.host_blocks[from.0 as usize];
                        self.kv_of.insert(self.blocks[to.0 as usize].hash(), to);
                    }
                    Load::Window { from, to } => {
                        self.window[to.0 as usize] = self.host_windows[from.0 as usize];
                        self.window_of.insert(self.window[to.0 as usize].hash(), to);
                    }
                }
            }
            self.forget_lost_host_units();
            let again = self.look_up(namespace, tokens);
            assert!(again.hit == found.hit && again.resident >= again.hit, "what was loaded is on the device");
            return again;
        }
        self.free_blocks.extend(blocks);
        self.free_window.extend(window);
        let key = Key { namespace: &self.namespaces[namespace], tokens };
        self.cache.lookup_resident(key)
    }

    /// Computes one chunk of the prompt and leaves the checkpoints that the strategy asks for.
    fn prefill(&mut self, mut request: Request, budget: usize) {
        let start = request.absorbed;
        let end = request.prompt.min(start + budget);
        if end <= start {
            return self.requests.push(request);
        }
        let strategy = *self.cache.strategy();
        let branch = request.lease.as_ref().and_then(Lease::branch);
        let extend = Extend { start, end, prompt: request.prompt, branch };
        for checkpoint in strategy.checkpoints(&self.config, extend) {
            if !self.absorb(&mut request, checkpoint.position) {
                return self.abort(request);
            }
            self.store(&mut request);
        }
        if self.absorb(&mut request, end) { self.requests.push(request) } else { self.abort(request) }
    }

    fn decode(&mut self, mut request: Request, steps: usize) {
        if request.absorbed < request.prompt {
            return self.requests.push(request);
        }
        for _ in 0..steps {
            if request.tokens.len() >= 80 {
                break;
            }
            self.next_token += 1;
            // Some continuations repeat, as greedy decoding does.
            let token = if self.next_token.is_multiple_of(2) { 7 } else { self.next_token };
            request.tokens.push(token);
            let len = request.tokens.len();
            if !self.absorb(&mut request, len) {
                return self.abort(request);
            }
            if self.cache.strategy().keeps_decoded(&self.config, len) {
                self.store(&mut request);
            }
        }
        self.requests.push(request);
    }

    /// Runs the model up to `end` tokens: blocks are filled and the live state moves on.
    fn absorb(&mut self, request: &mut Request, end: usize) -> bool {
        let page = self.config.page;
        while request.blocks.len() * page < end {
            let Some(block) = self.take_block() else { return false };
            request.blocks.push(block);
        }
        let namespace = &self.namespaces[request.namespace];
        for len in request.absorbed + 1..=end {
            let block = request.blocks[(len - 1) / page];
            self.blocks[block.0 as usize] = content(namespace, &request.tokens[..len]);
        }
        let live = &mut self.slots[request.live.0 as usize];
        if self.config.states {
            assert_eq!(*live, content(namespace, &request.tokens[..request.absorbed]), "the running state is its own");
        }
        *live = content(namespace, &request.tokens[..end]);
        request.absorbed = end;
        true
    }

    fn store(&mut self, request: &mut Request) {
        let slot = if self.config.states { self.take_slot() } else { None };
        if let Some(slot) = slot {
            self.slots[slot.0 as usize] = self.slots[request.live.0 as usize];
        }
        let tokens = request.tokens[..request.absorbed].to_vec();
        let window = self.window_blocks(request);
        let mut out = Released::default();
        let key = Key { namespace: &self.namespaces[request.namespace], tokens: &tokens };
        let at = Progress { key, blocks: &request.blocks, window: window.as_ref().map(span) };
        let lease = request.lease.as_mut().unwrap();
        let kept = self.cache.store(lease, at, slot, &mut out).unwrap();
        self.note(request, slot.filter(|_| kept), window.as_ref(), &out);
        self.release(out);
        let owned = request.lease.as_ref().unwrap().owned() / self.config.page;
        let private = request.blocks.split_off(owned);
        request.blocks.clear();
        self.cache.held_blocks(request.lease.as_ref().unwrap(), &mut request.blocks);
        assert_eq!(request.blocks.len(), owned);
        request.blocks.extend(private);
    }

    fn finish(&mut self, mut request: Request) {
        let strategy = *self.cache.strategy();
        let with_state = self.config.states && strategy.finish;
        let window = self.window_blocks(&request);
        let tokens = request.tokens[..request.absorbed].to_vec();
        let key = Key { namespace: &self.namespaces[request.namespace], tokens: &tokens };
        let at = Progress { key, blocks: &request.blocks, window: window.as_ref().map(span) };
        let lease = request.lease.take().unwrap();
        let state = if with_state { Final::Move } else { Final::Discard };
        let mut out = Released::default();
        let live = self.cache.finish(lease, at, state, &mut out).unwrap();
        let moved = live.is_none().then_some(request.live);
        self.note(&request, moved, window.as_ref(), &out);
        self.release(out);
        self.free_slot(live);
    }

    fn abort(&mut self, mut request: Request) {
        let lease = request.lease.take().unwrap();
        let private = request.blocks.split_off(lease.owned() / self.config.page);
        let live = self.cache.abort(lease).unwrap();
        self.free_slot(Some(live));
        self.release(Released { blocks: private, ..Released::default() });
    }

    /// The serving loop forgets the request; only its blocks are remembered, by the block table.
    fn lose(&mut self, mut request: Request) {
        let lease = request.lease.take().unwrap();
        let private = request.blocks.split_off(lease.owned() / self.config.page);
        drop(lease);
        let mut live = Vec::new();
        self.cache.reclaim(&mut live).unwrap();
        assert_eq!(live, [request.live]);
        self.free_slot(live.pop());
        self.release(Released { blocks: private, ..Released::default() });
    }
}

fn span(window: &(usize, Vec<BlockId>)) -> WindowSpan<'_> {
    WindowSpan { from: window.0, blocks: &window.1 }
}
