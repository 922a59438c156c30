//! Filters of sequences.

#![expect(clippy::needless_pass_by_value, reason = "the library hands arguments over by value")]

use minijinja::value::{Kwargs, Rest, from_args};
use minijinja::{Environment, Error, ErrorKind, State, Value};

use crate::python::operators::{compare, equal, hashable, sorted, sum};
use crate::python::{
    self, bind, bounded, generator, group, integer, item, iterate, length, pairs, raised, text, tuple, type_of,
};

pub(super) fn add(environment: &mut Environment<'static>) {
    for name in ["length", "count"] {
        environment.add_filter(name, length);
    }
    environment.add_filter("list", |value: &Value| iterate(value).map(Value::from));
    environment.add_filter("first", |value: &Value| Ok::<_, Error>(python::first(value)?.unwrap_or(Value::UNDEFINED)));
    environment
        .add_filter("last", |value: &Value| Ok::<_, Error>(reversible(value)?.pop().unwrap_or(Value::UNDEFINED)));
    environment.add_filter("reverse", reverse);
    environment.add_filter("join", join);
    environment.add_filter("sum", |value: &Value, args: Rest<Value>| summed(value, &args));
    environment.add_filter("sort", sort);
    environment.add_filter("unique", unique);
    environment.add_filter("min", |value: &Value, args: Rest<Value>| extreme(value, &args, "<"));
    environment.add_filter("max", |value: &Value, args: Rest<Value>| extreme(value, &args, ">"));
    environment.add_filter("map", map);
    for (name, keeps, by_attribute) in
        [("select", true, false), ("reject", false, false), ("selectattr", true, true), ("rejectattr", false, true)]
    {
        environment.add_filter(name, move |state: &State<'_, '_>, value: &Value, args: Rest<Value>| {
            select(state, value, &args, keeps, by_attribute)
        });
    }
    environment.add_filter("batch", batch);
    environment.add_filter("slice", slices);
    environment.add_filter("groupby", groupby);
    environment.add_filter("items", |value: &Value| match type_of(value) {
        "Undefined" => Ok(generator(Vec::new())),
        "dict" => Ok(generator(pairs(value).into_iter().map(|(key, value)| tuple([key, value])).collect())),
        other => Err(raised(format!("Can only get item pairs from a mapping, not '{other}'"))),
    });
    environment.add_filter("dictsort", dictsort);
}

fn truth(value: Option<Value>) -> bool {
    value.is_some_and(|value| value.is_true())
}

fn stated(value: Option<Value>) -> Option<Value> {
    value.filter(|value| !value.is_none())
}

/// What `reversed` takes.
fn reversible(value: &Value) -> Result<Vec<Value>, Error> {
    if type_of(value) == "generator" { Err(raised("'generator' object is not reversible")) } else { iterate(value) }
}

fn reverse(value: &Value) -> Result<Value, Error> {
    if let Some(text) = value.as_str() {
        return Ok(text.chars().rev().collect::<String>().into());
    }
    let mut items = iterate(value)?;
    items.reverse();
    Ok(if type_of(value) == "generator" { Value::from(items) } else { generator(items) })
}

/// The value of an attribute, `a.0.b`; a text in small letters where case does not count.
fn got(value: &Value, path: Option<&Value>, default: Option<&Value>, fold: bool) -> Result<Value, Error> {
    let mut found = value.clone();
    if let Some(path) = path {
        let steps: Vec<Value> = match path.as_str() {
            Some(path) => path
                .split('.')
                .map(|step| step.parse::<u32>().map_or_else(|_| Value::from(step), Value::from))
                .collect(),
            None => vec![path.clone()],
        };
        for step in steps {
            found = item(&found, &step)?;
            if let (true, Some(default)) = (found.is_undefined(), default) {
                found = default.clone();
            }
        }
    }
    Ok(match found.as_str().filter(|_| fold) {
        Some(text) => Value::from(text.to_lowercase()),
        None => found,
    })
}

fn join(value: &Value, args: Rest<Value>) -> Result<String, Error> {
    let [between, attribute] = bind(&args, ["d", "attribute"])?;
    let between = between.as_ref().map_or_else(|| Ok(String::new()), text)?;
    let attribute = stated(attribute);
    let mut out = String::new();
    for (place, item) in iterate(value)?.iter().enumerate() {
        let item = text(&got(item, attribute.as_ref(), None, false)?)?;
        bounded(out.len().checked_add(between.len() + item.len()))?;
        out += if place > 0 { &between } else { "" };
        out += &item;
    }
    Ok(out)
}

fn summed(value: &Value, args: &[Value]) -> Result<Value, Error> {
    let [attribute, start] = bind(args, ["attribute", "start"])?;
    let attribute = stated(attribute);
    let start = start.unwrap_or_else(|| Value::from(0));
    if type_of(&start) == "str" {
        return Err(raised("sum() can't sum strings"));
    }
    let mut all = vec![start];
    for item in iterate(value)? {
        all.push(got(&item, attribute.as_ref(), None, false)?);
    }
    let operators = vec!["+"; all.len() - 1].join(",");
    sum(&operators, &Value::from(all))
}

fn sort(value: &Value, args: Rest<Value>) -> Result<Value, Error> {
    let [reverse, cased, attribute] = bind(&args, ["reverse", "case_sensitive", "attribute"])?;
    let (reverse, fold, attribute) = (truth(reverse), !truth(cased), stated(attribute));
    let paths: Vec<Option<Value>> = match attribute.as_ref().map(|attribute| (attribute, attribute.as_str())) {
        Some((_, Some(text))) => text.split(',').map(|path| Some(Value::from(path))).collect(),
        Some((other, None)) => vec![Some(other.clone())],
        None => vec![None],
    };
    let keyed = iterate(value)?.into_iter().map(|item| {
        let keys = paths.iter().map(|path| got(&item, path.as_ref(), None, fold)).collect::<Result<Vec<_>, _>>()?;
        Ok((Value::from(keys), item))
    });
    let items = sorted(keyed.collect::<Result<Vec<_>, Error>>()?, reverse)?;
    Ok(items.into_iter().map(|(_, item)| item).collect())
}

fn unique(value: &Value, args: Rest<Value>) -> Result<Value, Error> {
    let [cased, attribute] = bind(&args, ["case_sensitive", "attribute"])?;
    let (fold, attribute) = (!truth(cased), stated(attribute));
    let (mut seen, mut items) = (Vec::new(), Vec::new());
    for item in iterate(value)? {
        let key = got(&item, attribute.as_ref(), None, fold)?;
        if !hashable(&key) {
            return Err(raised(format!("unhashable type: '{}'", type_of(&key))));
        }
        if !seen.iter().any(|seen| equal(seen, &key)) {
            items.push(item);
            seen.push(key);
        }
    }
    Ok(generator(items))
}

fn extreme(value: &Value, args: &[Value], operator: &str) -> Result<Value, Error> {
    let [cased, attribute] = bind(args, ["case_sensitive", "attribute"])?;
    let (fold, attribute) = (!truth(cased), stated(attribute));
    let mut best: Option<(Value, Value)> = None;
    for item in iterate(value)? {
        let key = got(&item, attribute.as_ref(), None, fold)?;
        let better = best.as_ref().map_or(Ok(true), |(best, _)| compare(operator, &key, best))?;
        if better {
            best = Some((key, item));
        }
    }
    Ok(best.map_or(Value::UNDEFINED, |(_, item)| item))
}

/// jinja2 goes over nothing that is not true.
fn over(value: &Value) -> Result<Vec<Value>, Error> {
    if value.is_true() { iterate(value) } else { Ok(Vec::new()) }
}

fn map(state: &State<'_, '_>, value: &Value, args: Rest<Value>) -> Result<Value, Error> {
    let (given, named): (&[Value], Kwargs) = from_args(&args)?;
    if given.is_empty() && named.has("attribute") {
        let (attribute, default): (Value, Option<Value>) = (named.get("attribute")?, named.get("default")?);
        named.assert_all_used()?;
        let items =
            over(value)?.into_iter().map(|item| got(&item, Some(&attribute), stated(default.clone()).as_ref(), false));
        return items.collect::<Result<Vec<_>, _>>().map(generator);
    }
    let items = over(value)?;
    let name = args.first().filter(|name| !name.is_kwargs()).ok_or_else(|| raised("map requires a filter argument"))?;
    let name = name.as_str().ok_or_else(|| raised("a filter's name is a text"))?;
    let mapped = items.into_iter().map(|item| {
        let all: Vec<Value> = std::iter::once(item).chain(args[1..].iter().cloned()).collect();
        state.apply_filter(name, &all)
    });
    mapped.collect::<Result<Vec<_>, _>>().map(generator)
}

fn select(
    state: &State<'_, '_>,
    value: &Value,
    args: &[Value],
    keeps: bool,
    by_attribute: bool,
) -> Result<Value, Error> {
    let (attribute, args) = match args.split_first() {
        Some((attribute, args)) if by_attribute => (Some(attribute), args),
        None if by_attribute => return Err(raised("Missing parameter for attribute name")),
        _ => (None, args),
    };
    let mut items = Vec::new();
    for item in over(value)? {
        let tested = got(&item, attribute, None, false)?;
        let is = match args.split_first() {
            None => tested.is_true(),
            Some((name, args)) => {
                let name = name.as_str().ok_or_else(|| raised("a test's name is a text"))?;
                let all: Vec<Value> = std::iter::once(tested).chain(args.iter().cloned()).collect();
                state.perform_test(name, &all)?
            }
        };
        if is == keeps {
            items.push(item);
        }
    }
    Ok(generator(items))
}

/// A number of lists, or of their items, that is at least 1.
fn count(value: Option<Value>) -> Result<usize, Error> {
    let number = value.as_ref().and_then(integer).ok_or_else(|| Error::from(ErrorKind::MissingArgument))?;
    bounded(usize::try_from(number).ok().filter(|number| *number > 0))
}

fn batch(value: &Value, args: Rest<Value>) -> Result<Value, Error> {
    let [size, fill] = bind(&args, ["linecount", "fill_with"])?;
    let (size, fill) = (count(size)?, stated(fill));
    let list = |chunk: &[Value]| {
        let mut chunk = chunk.to_vec();
        if let Some(fill) = &fill {
            chunk.resize(size, fill.clone());
        }
        Value::from(chunk)
    };
    bounded(size.checked_mul(size_of::<Value>()))?;
    Ok(generator(iterate(value)?.chunks(size).map(list).collect()))
}

fn slices(value: &Value, args: Rest<Value>) -> Result<Value, Error> {
    let [lists, fill] = bind(&args, ["slices", "fill_with"])?;
    let (lists, fill, items) = (count(lists)?, stated(fill), iterate(value)?);
    bounded(lists.checked_mul(size_of::<Value>()))?;
    let (each, more) = (items.len() / lists, items.len() % lists);
    let mut rest = items.into_iter();
    let made = (0..lists).map(|place| {
        let mut list: Vec<Value> = rest.by_ref().take(each + usize::from(place < more)).collect();
        list.extend(fill.iter().filter(|_| place >= more).cloned());
        Value::from(list)
    });
    Ok(generator(made.collect()))
}

fn groupby(value: &Value, args: Rest<Value>) -> Result<Value, Error> {
    let [attribute, default, cased] = bind(&args, ["attribute", "default", "case_sensitive"])?;
    let attribute = attribute.ok_or_else(|| Error::from(ErrorKind::MissingArgument))?;
    let (default, fold) = (stated(default), !truth(cased));
    let key = |item: &Value, fold| got(item, stated(Some(attribute.clone())).as_ref(), default.as_ref(), fold);
    let keyed = iterate(value)?.into_iter().map(|item| Ok((key(&item, fold)?, item)));
    let mut groups: Vec<(Value, Vec<Value>)> = Vec::new();
    for (found, item) in sorted(keyed.collect::<Result<Vec<_>, Error>>()?, false)? {
        match groups.last_mut() {
            Some((last, items)) if equal(last, &found) => items.push(item),
            _ => groups.push((found, vec![item])),
        }
    }
    let made = groups.into_iter().map(|(found, items)| {
        // As the first of them writes it.
        let found = if fold { key(&items[0], false)? } else { found };
        Ok(group(found, Value::from(items)))
    });
    made.collect::<Result<Vec<_>, Error>>().map(Value::from)
}

fn dictsort(value: &Value, args: Rest<Value>) -> Result<Value, Error> {
    let [cased, by, reverse] = bind(&args, ["case_sensitive", "by", "reverse"])?;
    let by_value = match by.as_ref().map_or(Some("key"), Value::as_str) {
        Some("key") => false,
        Some("value") => true,
        _ => return Err(raised("You can only sort by either 'key' or 'value'")),
    };
    if type_of(value) != "dict" {
        return Err(raised(format!("'{}' object has no attribute 'items'", type_of(value))));
    }
    let fold = !truth(cased);
    let keyed = pairs(value).into_iter().map(|(key, value)| {
        let by = got(if by_value { &value } else { &key }, None, None, fold)?;
        Ok((by, tuple([key, value])))
    });
    let items = sorted(keyed.collect::<Result<Vec<_>, Error>>()?, truth(reverse))?;
    Ok(items.into_iter().map(|(_, item)| item).collect())
}
