//! jinja2's functions, operators, filters and tests, as Python has them. None is the library's.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use minijinja::value::{Kwargs, Object, ObjectRepr, Rest};
use minijinja::{Environment, Error, ErrorKind, State, Value, functions};

use crate::python::{self, bind, methods, operators, pairs, raised, text, tuple, type_of};
use crate::syntax::names;

mod filters;
mod sequences;
mod tests;

/// Makes an empty environment jinja2's.
pub(crate) fn prepare(environment: &mut Environment<'static>) {
    environment.set_unknown_method_callback(methods::call);
    environment.set_formatter(|out, _, value| Ok(out.write_str(&text(value)?)?));
    operators_of(environment);
    functions_of(environment);
    filters::add(environment);
    sequences::add(environment);
    tests::add(environment);
}

/// What expressions are translated to.
fn operators_of(environment: &mut Environment<'static>) {
    environment.add_function(names::TEXT, operators::concatenated);
    environment.add_function(names::SUM, operators::sum);
    environment.add_function(names::COMPARE, operators::compared);
    environment.add_function(names::SIGN, operators::sign);
    environment
        .add_function(names::TUPLE, |items: &Value| Ok::<_, Error>(tuple(items.try_iter()?.collect::<Vec<_>>())));
    environment.add_function(names::DICT, |items: &Value| {
        let items: Vec<Value> = items.try_iter()?.collect();
        let pairs = items.chunks_exact(2).map(|pair| (pair[0].clone(), pair[1].clone()));
        dict_of(pairs.collect())
    });
    environment.add_function(names::VALUE, |value: Value| value);
    environment.add_function(names::ITERATE, |value: &Value| python::iterate(value).map(Value::from));
    environment.add_function(names::ATTRIBUTE, python::attribute);
    environment.add_function(names::ITEM, python::item);
    environment.add_function(names::SLICE, python::slice);
    environment.add_function(names::CALL, |state: &State<'_, '_>, called: &Value, args: Rest<Value>| match called {
        value if value.is_undefined() => Err(ErrorKind::UndefinedError.into()),
        value => value.call(state, &args),
    });
    environment.add_function(names::METHOD, |state: &State<'_, '_>, of: &Value, name: &str, args: Rest<Value>| {
        if of.is_undefined() {
            return Err(ErrorKind::UndefinedError.into());
        }
        if type_of(of) == "object" {
            return of.call_method(state, name, &args);
        }
        let own = methods::names(type_of(of)).contains(&name);
        let item = if own { Value::UNDEFINED } else { python::attribute(of, name)? };
        if item.is_undefined() { methods::call(state, of, name, &args) } else { item.call(state, &args) }
    });
}

fn functions_of(environment: &mut Environment<'static>) {
    environment.add_function("range", |args: Rest<Value>| python::range(&args));
    environment.add_function("dict", |args: Rest<Value>| dict(&args));
    environment.add_function("namespace", |args: Rest<Value>| functions::namespace(Some(dict(&args)?)));
    environment.add_function("joiner", |args: Rest<Value>| {
        let [separator] = bind(&args, ["sep"])?;
        let (separator, used) = (separator.unwrap_or_else(|| Value::from(", ")), AtomicBool::new(false));
        let next = move || if used.swap(true, Ordering::Relaxed) { separator.clone() } else { Value::from("") };
        Ok::<_, Error>(Value::from_function(next))
    });
    environment.add_function("cycler", |items: Rest<Value>| match items.is_empty() {
        true => Err(raised("at least one item has to be provided")),
        false => Ok(Value::from_object(Cycler { items: items.0, at: AtomicUsize::new(0) })),
    });
}

/// A dict of its pairs.
fn dict_of(pairs: Vec<(Value, Value)>) -> Result<Value, Error> {
    if let Some((key, _)) = pairs.iter().find(|(key, _)| !operators::hashable(key)) {
        return Err(raised(format!("unhashable type: '{}'", type_of(key))));
    }
    Ok(Value::from_iter(pairs))
}

/// `dict(of, a=1)`.
fn dict(args: &[Value]) -> Result<Value, Error> {
    let (of, named): (Option<Value>, Kwargs) = minijinja::value::from_args(args)?;
    let mut all = match &of {
        None => Vec::new(),
        Some(of) if type_of(of) == "dict" => pairs(of),
        Some(of) => {
            let pair = |pair: Value| match <[Value; 2]>::try_from(python::iterate(&pair)?) {
                Ok([key, value]) => Ok((key, value)),
                Err(_) => Err(raised("a dict is made of pairs")),
            };
            python::iterate(of)?.into_iter().map(pair).collect::<Result<_, Error>>()?
        }
    };
    for name in named.args() {
        all.push((Value::from(name), named.get(name)?));
    }
    dict_of(all)
}

/// `cycler`.
#[derive(Debug)]
struct Cycler {
    items: Vec<Value>,
    at: AtomicUsize,
}

impl Object for Cycler {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        let current = || self.items.get(self.at.load(Ordering::Relaxed) % self.items.len()).cloned();
        if key.as_str() == Some("current") { current() } else { None }
    }

    fn call_method(self: &Arc<Self>, _: &State<'_, '_>, name: &str, args: &[Value]) -> Result<Value, Error> {
        bind(args, []).map(|[]| ())?;
        match name {
            "next" => {
                let at = self.at.fetch_add(1, Ordering::Relaxed);
                Ok(self.items.get(at % self.items.len()).cloned().unwrap_or_default())
            }
            "reset" => {
                self.at.store(0, Ordering::Relaxed);
                Ok(Value::from(()))
            }
            _ => Err(ErrorKind::UnknownMethod.into()),
        }
    }
}

/// Whether it can be called; jinja2's undefined can, to fail.
fn is_callable(value: &Value) -> bool {
    match type_of(value) {
        "Undefined" | "method" => true,
        "object" => {
            let name = value.as_object().map_or("", |object| object.type_name());
            !["Namespace", "Cycler"].iter().any(|other| name.ends_with(other))
        }
        _ => false,
    }
}
