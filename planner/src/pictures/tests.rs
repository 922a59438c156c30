//! Pictures of the whole zoo: labels apart and inside, one colour for each pool, every byte there; and hostile names.

use std::collections::BTreeSet;

use cacheplan_transforms::layers::LayerSpec;
use cacheplan_transforms::{Model, ReadOptions};

use super::colours::{of_place, on};
use super::element::{Child, Element};
use super::{capacity, heat, letters, map, percent, strip, tokens};
use crate::budget::Budget;
use crate::device::DeviceInfo;
use crate::engines::{Engine, EngineSpec};
use crate::fit::{FitQuestion, Prices};
use crate::plan::{CachePlan, LedgerItem, LedgerLine};
use crate::request::PlanRequest;
use crate::size::{ByteSize, separated};

fn budget(text: &str) -> Budget {
    Budget::from_toml(text, "budget.toml").unwrap()
}

/// Every config that a front-end knows.
fn models() -> impl Iterator<Item = (String, Model)> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/configs");
    std::fs::read_dir(folder).unwrap().filter_map(|entry| {
        let path = entry.unwrap().path();
        let name = path.file_stem()?.to_string_lossy().into_owned();
        Some((name, Model::read(&path, &ReadOptions::default()).ok()?))
    })
}

fn model(name: &str) -> Model {
    models().find(|(known, _)| known == name).unwrap().1
}

/// What an element covers.
#[derive(Clone, Copy, Debug)]
struct Box {
    left: f64,
    top: f64,
    right: f64,
    bottom: f64,
}

impl Box {
    fn meets(&self, other: &Self) -> bool {
        let inside = 0.05;
        self.left + inside < other.right
            && other.left + inside < self.right
            && self.top + inside < other.bottom
            && other.top + inside < self.bottom
    }

    fn holds(&self, other: &Self) -> bool {
        self.left <= other.left + 0.05
            && self.top <= other.top + 0.05
            && self.right + 0.05 >= other.right
            && self.bottom + 0.05 >= other.bottom
    }
}

fn number(element: &Element, name: &str) -> Option<f64> {
    element.attributes.iter().find(|(known, _)| *known == name)?.1.parse().ok()
}

fn said<'a>(element: &'a Element, name: &str) -> &'a str {
    element.attributes.iter().find(|(known, _)| *known == name).map_or("", |(_, value)| value)
}

fn text(element: &Element) -> String {
    let text = |child: &Child| match child {
        Child::Text(text) => text.clone(),
        Child::Element(element) => text(element),
    };
    element.children.iter().map(text).collect()
}

fn elements(element: &Element) -> impl Iterator<Item = &Element> {
    element.children.iter().filter_map(|child| match child {
        Child::Element(element) => Some(element),
        Child::Text(_) => None,
    })
}

/// Every label with what it covers, and what it must stay inside: the picture, and where it has one its own part.
fn labels(element: &Element, (x, y): (f64, f64), within: Box, found: &mut Vec<(String, Box)>) {
    let (mut at, mut within) = ((x, y), within);
    match element.tag {
        "svg" => {
            at = (x + number(element, "x").unwrap_or(0.0), y + number(element, "y").unwrap_or(0.0));
            let (width, height) = (number(element, "width").unwrap(), number(element, "height").unwrap());
            within = Box { left: at.0, top: at.1, right: at.0 + width, bottom: at.1 + height };
        }
        "g" => {
            let frame = elements(element).filter(|child| child.tag == "rect").last().unwrap();
            let of = |name| number(frame, name).unwrap();
            let (left, top) = (x + of("x"), y + of("y"));
            within = Box { left, top, right: left + of("width"), bottom: top + of("height") };
        }
        "text" => {
            let label = label(element, (x, y));
            assert!(within.holds(&label), "`{}` {label:?} leaves {within:?}", text(element));
            found.push((text(element), label));
            return;
        }
        _ => {}
    }
    elements(element).for_each(|child| labels(child, at, within, found));
}

fn label(element: &Element, (x, y): (f64, f64)) -> Box {
    let size = number(element, "font-size").unwrap();
    let wide = letters::width(&text(element), size, said(element, "font-weight") == "bold");
    let before = match said(element, "text-anchor") {
        "middle" => wide / 2.0,
        "end" => wide,
        _ => 0.0,
    };
    let (x, y) = (x + number(element, "x").unwrap(), y + number(element, "y").unwrap());
    // Letters reach so far above and below the line that they stand on.
    let (above, below) = (0.76 * size, 0.24 * size);
    if said(element, "transform").starts_with("rotate(-90 ") {
        return Box { left: x - above, top: y - wide + before, right: x + below, bottom: y + before };
    }
    Box { left: x - before, top: y - above, right: x - before + wide, bottom: y + below }
}

fn assert_labels_are_apart(name: &str, picture: &Element) -> usize {
    let mut found = Vec::new();
    let everywhere = Box { left: 0.0, top: 0.0, right: 1e9, bottom: 1e9 };
    labels(picture, (0.0, 0.0), everywhere, &mut found);
    for (at, (text, label)) in found.iter().enumerate() {
        let over = found[at + 1..].iter().find(|(_, other)| label.meets(other));
        assert!(over.is_none(), "{name}: `{text}` {label:?} and {over:?}");
    }
    found.len()
}

/// Plans of all models on a device, and in bytes alone where the size of their weights is not known.
fn plans(mut each: impl FnMut(&str, &Model, Option<&DeviceInfo>, &PlanRequest, &CachePlan)) {
    let device: DeviceInfo = "h200".parse().unwrap();
    let mut drawn = 0;
    for (name, model) in models() {
        for (device, grouping) in [(Some(&device), "by-key"), (None, "first-reference")] {
            let memory = if device.is_some() { "fraction = 0.9\nof = 'total'" } else { "bytes = '40GiB'" };
            let text = format!("max_seq_len = 8192\ngrouping = '{grouping}'\n[memory]\n{memory}");
            let budget = budget(&text);
            let request = PlanRequest::of(model.clone()).with_budget(budget);
            let request = device.map_or(request.clone(), |device| request.with_devices(device.clone()));
            // Some do not fit, and of some nobody knows the weights.
            let Ok(plan) = request.plan() else { continue };
            each(&name, &model, device, &request, &plan);
            drawn += 1;
        }
    }
    assert!(drawn > 80, "{drawn} plans");
}

#[test]
fn labels_of_the_whole_zoo_never_overlap_and_stay_inside() {
    let mut labels = 0;
    plans(|name, model, device, _, plan| {
        for width in [350.0, 952.0] {
            labels += assert_labels_are_apart(name, &map::pair(plan, device, width));
            for pool in &plan.pools {
                let within = map::draw(plan, device, std::slice::from_ref(&pool.id), width);
                assert!(within.path.len() == 3 || pool.members.is_empty(), "{name} {}: {:?}", pool.id, within.path);
                labels += assert_labels_are_apart(name, &within.picture);
            }
            labels += assert_labels_are_apart(name, &strip::draw(plan, &model.layers, width));
        }
        labels += assert_labels_are_apart(name, &plan.sheet(device));
    });
    assert!(labels > 5_000, "{labels} labels");
}

#[test]
fn curves_have_labels_that_never_overlap() {
    let names = ["Zyphra__Zamba2-7B", "nvidia__NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "deepseek-ai__DeepSeek-V3"];
    for (name, model) in models().filter(|(name, _)| names.contains(&name.as_str())) {
        let budget = budget("max_seq_len = 8192\n[memory]\nbytes = '40GiB'");
        let request = PlanRequest::of(model).with_budget(budget);
        let engines: Vec<_> = Engine::all().iter().copied().map(EngineSpec::from).collect();
        let curves = request.curves(&[], &engines);
        for width in [350.0, 860.0] {
            assert!(assert_labels_are_apart(&name, &capacity::draw(&curves, &request.plan().unwrap(), width)) > 8);
        }
    }
}

#[test]
fn maps_of_devices_have_labels_that_never_overlap() {
    let devices = ["h100", "h200", "b200", "mi300x", "l40s", "l4"];
    for prices in ["currency = ''\n[per_hour]\n", "currency = 'USD'\n[per_hour]\nh100 = 123.5\nl4 = 0.25\n"] {
        let question = FitQuestion {
            model: None,
            stated: Vec::new(),
            context: 32_768,
            sequences: 20,
            devices: devices.map(|name| (name.to_owned(), name.parse().unwrap())).into(),
            max_devices: 16,
            margin: 0,
            weights: Some(ByteSize(470_000_000_000).into()),
            prices: Prices::from_toml(prices).unwrap(),
        };
        let answer = PlanRequest::of(model("Qwen__Qwen3-235B-A22B")).fit(&question).unwrap();
        for width in [350.0, 952.0] {
            assert!(assert_labels_are_apart("fit", &heat::draw(&answer, width)) > 50);
        }
        assert_labels_are_apart("fit", &answer.sheet());
    }
}

#[test]
fn every_pool_has_one_colour_of_its_own() {
    plans(|name, model, device, _, plan| {
        let mut fills: Vec<BTreeSet<String>> = vec![BTreeSet::new(); plan.pools.len()];
        let pictures = [map::pair(plan, device, 952.0), strip::draw(plan, &model.layers, 952.0)];
        let mut open: Vec<&Element> = pictures.iter().collect();
        while let Some(element) = open.pop() {
            let place = plan.pools.iter().position(|pool| pool.id == said(element, "data-subject"));
            if let (Some(place), Some(rect)) = (place, elements(element).find(|child| child.tag == "rect")) {
                fills[place].insert(said(rect, "fill").to_owned());
            }
            open.extend(elements(element));
        }
        assert!(fills.iter().all(|fills| fills.len() == 1), "{name}: {fills:?}");
        let all: BTreeSet<&String> = fills.iter().flatten().collect();
        assert_eq!(all.len(), plan.pools.len(), "{name}: {fills:?}");
    });
}

/// Letters on their ground have the contrast that WCAG asks for (4.5), and neighbours in the list of colours differ for
/// readers without one kind of cone (Machado et al. 2009), by at least 15 in CIE Lab.
#[test]
fn colours_are_read_and_told_apart_by_colour_blind_readers() {
    let linear = |fill: &str| {
        [1, 3, 5].map(|at| {
            let part = f64::from(u8::from_str_radix(&fill[at..at + 2], 16).unwrap()) / 255.0;
            if part <= 0.04045 { part / 12.92 } else { ((part + 0.055) / 1.055_f64).powf(2.4) }
        })
    };
    let luminance = |[red, green, blue]: [f64; 3]| 0.2126 * red + 0.7152 * green + 0.0722 * blue;
    for place in 0..60 {
        let fill = of_place(place);
        let (ground, ink) = (luminance(linear(&fill)), luminance(linear(on(&fill))));
        let contrast = (ground.max(ink) + 0.05) / (ground.min(ink) + 0.05);
        assert!(contrast >= 4.5, "{fill}: {contrast}");
    }
    const CONES: [[[f64; 3]; 3]; 3] = [
        [[0.152_286, 1.052_583, -0.204_868], [0.114_503, 0.786_281, 0.099_216], [-0.003_882, -0.048_116, 1.051_998]],
        [[0.367_322, 0.860_646, -0.227_968], [0.280_085, 0.672_501, 0.047_413], [-0.011_820, 0.042_940, 0.968_881]],
        [[1.255_528, -0.076_749, -0.178_779], [-0.078_411, 0.930_809, 0.147_602], [0.004_733, 0.691_367, 0.303_900]],
    ];
    let lab = |[red, green, blue]: [f64; 3]| {
        let curve = |part: f64| if part > 0.008_856 { part.cbrt() } else { 7.787 * part + 16.0 / 116.0 };
        let x = curve((0.4124 * red + 0.3576 * green + 0.1805 * blue) / 0.9505);
        let y = curve(0.2126 * red + 0.7152 * green + 0.0722 * blue);
        let z = curve((0.0193 * red + 0.1192 * green + 0.9505 * blue) / 1.089);
        [116.0 * y - 16.0, 500.0 * (x - y), 200.0 * (y - z)]
    };
    for cone in CONES {
        let seen = |place: usize| {
            let fill = linear(&of_place(place));
            lab(cone.map(|row| row.iter().zip(fill).map(|(share, part)| share * part).sum::<f64>().clamp(0.0, 1.0)))
        };
        for place in 1..4 {
            for before in 0..place {
                let apart: f64 = seen(place).iter().zip(seen(before)).map(|(one, other)| (one - other).powi(2)).sum();
                assert!(apart.sqrt() > 15.0, "{} and {}: {}", of_place(before), of_place(place), apart.sqrt());
            }
        }
    }
}

#[test]
fn every_byte_of_the_ledger_and_of_the_device_is_in_the_map() {
    plans(|name, _, device, _, plan| {
        let planned: u64 = plan.ledger.iter().map(|line| line.bytes).sum();
        let total = device.map_or(planned, |device| device.total_bytes);
        let picture = map::draw(plan, device, &[], 900.0).picture;
        let parts: Vec<&Element> = elements(&picture).collect();
        // Where there is room, what is in the caches follows them.
        let caches =
            parts.iter().position(|part| said(part, "data-into") == "caches").filter(|at| at + 1 < parts.len());
        let shown = parts.iter().enumerate().filter(|(at, _)| Some(*at) != caches);
        let bytes = shown.map(|(_, part)| {
            let said = text(elements(part).next().unwrap());
            let bytes = said.lines().find_map(|line| line.strip_prefix("bytes: ")).unwrap();
            bytes.parse::<u64>().unwrap()
        });
        assert_eq!(bytes.sum::<u64>(), total, "{name}");
    });
}

/// Markup that would do something, in whatever a model, a budget or a device may be called.
const EVIL: &str = "<img src=x onerror=alert(1)></title></text></style><script>alert(2)</script>\"'&\u{202e}\u{0}";

#[test]
fn hostile_names_are_text_in_every_file() {
    let budget = budget("max_seq_len = 8192\n[memory]\nbytes = '24GiB'");
    let request = PlanRequest::of(model("nvidia__NVIDIA-Nemotron-3-Nano-30B-A3B-BF16")).with_budget(budget);
    let (mut plan, curves) = (request.plan().unwrap(), request.curves(&[4096], &[]));
    // No file that is read has such names; what is made in memory may.
    let evil = || EVIL.to_owned();
    plan.model.model_type = evil();
    for resource in plan.resources.iter_mut().take(3) {
        (resource.name, resource.kind, resource.pool, resource.reason) = (evil(), evil(), evil(), evil());
    }
    plan.pools[0].id = evil();
    plan.pools[0].members[0].resource = evil();
    plan.ledger[0].note = evil();
    plan.ledger.push(LedgerLine { name: LedgerItem::Pool(evil()), bytes: 1 << 30, ..plan.ledger[0].clone() });
    let mut device: DeviceInfo = "h200".parse().unwrap();
    device.name = EVIL.into();
    let layers = vec![LayerSpec { kind: EVIL.into(), ..Default::default() }; 52];
    let html = plan.html(Some(&device), &layers, &curves);
    for file in [plan.svg(), plan.svg_on(Some(&device)), html.clone()] {
        assert!(file.contains("&lt;img src=x"), "{file}");
        let tags: BTreeSet<&str> = file
            .split('<')
            .skip(1)
            .map(|tag| {
                tag.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '!' && letter != '/')
                    .next()
                    .unwrap()
            })
            .map(|tag| tag.trim_start_matches('/'))
            .collect();
        let known = [
            "!doctype", "body", "caption", "circle", "div", "footer", "g", "h1", "h2", "head", "header", "html", "li",
            "main", "meta", "p", "path", "rect", "section", "style", "svg", "table", "tbody", "td", "text", "th",
            "thead", "title", "tr", "ul",
        ];
        assert!(tags.iter().all(|tag| known.contains(tag)), "{tags:?}");
        assert!(!file.contains('\u{202e}') && !file.contains('\u{0}'));
    }
    // Nothing is asked for and nothing runs, whatever stands there.
    assert!(html.contains("default-src 'none'; style-src 'unsafe-inline'"));
    assert!(
        !html.contains("url(") && !html.contains("@import") && !html.contains(" src=\"") && !html.contains(" href=")
    );
}

#[test]
fn a_document_has_the_pictures_of_the_page_and_all_numbers() {
    let model = model("Zyphra__Zamba2-7B");
    let budget = budget("max_seq_len = 8192\n[memory]\nbytes = '24GiB'");
    let request = PlanRequest::of(model.clone()).with_budget(budget);
    let (plan, curves) = (request.plan().unwrap(), request.curves(&[], &[]));
    let html = plan.html(None, &model.layers, &curves);
    for drawn in
        [map::pair(&plan, None, 940.0), strip::draw(&plan, &model.layers, 940.0), capacity::draw(&curves, &plan, 940.0)]
    {
        assert!(html.contains(&drawn.to_string()));
    }
    for line in &plan.ledger {
        assert!(html.contains(&format!(">{}<", line.name)), "{}", line.name);
    }
}

#[test]
fn numbers_are_written_for_people() {
    assert_eq!([0, 999, 1000, 1_234_567].map(separated), ["0", "999", "1,000", "1,234,567"]);
    assert_eq!([1000.0, 1024.0, 1_048_576.0].map(tokens), ["1000", "1k", "1m"]);
    assert_eq!([percent(1, 3), percent(1, 0)], ["33.3 %", "0.0 %"]);
}
