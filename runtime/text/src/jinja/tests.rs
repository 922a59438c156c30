//! Tests: what stands behind `is`.

use minijinja::{Environment, Error, State, Value};

use super::is_callable;
use crate::python::methods;
use crate::python::operators::{compare, equal, hashable, sum};
use crate::python::{integer, iterate, raised, text, type_of};

/// All filters and tests of jinja2, of which some are not known here.
const FILTERS: [&str; 54] = [
    "abs",
    "attr",
    "batch",
    "capitalize",
    "center",
    "count",
    "d",
    "default",
    "dictsort",
    "e",
    "escape",
    "filesizeformat",
    "first",
    "float",
    "forceescape",
    "format",
    "groupby",
    "indent",
    "int",
    "items",
    "join",
    "last",
    "length",
    "list",
    "lower",
    "map",
    "max",
    "min",
    "pprint",
    "random",
    "reject",
    "rejectattr",
    "replace",
    "reverse",
    "round",
    "safe",
    "select",
    "selectattr",
    "slice",
    "sort",
    "string",
    "striptags",
    "sum",
    "title",
    "tojson",
    "trim",
    "truncate",
    "unique",
    "upper",
    "urlencode",
    "urlize",
    "wordcount",
    "wordwrap",
    "xmlattr",
];
const TESTS: [&str; 39] = [
    "!=",
    "<",
    "<=",
    "==",
    ">",
    ">=",
    "boolean",
    "callable",
    "defined",
    "divisibleby",
    "eq",
    "equalto",
    "escaped",
    "even",
    "false",
    "filter",
    "float",
    "ge",
    "greaterthan",
    "gt",
    "in",
    "integer",
    "iterable",
    "le",
    "lessthan",
    "lower",
    "lt",
    "mapping",
    "ne",
    "none",
    "number",
    "odd",
    "sameas",
    "sequence",
    "string",
    "test",
    "true",
    "undefined",
    "upper",
];

pub(super) fn add(environment: &mut Environment<'static>) {
    let typed: [(&'static str, &'static [&'static str]); 9] = [
        ("undefined", &["Undefined"]),
        ("none", &["NoneType"]),
        ("boolean", &["bool"]),
        ("integer", &["int"]),
        ("float", &["float"]),
        ("number", &["bool", "int", "float"]),
        ("string", &["str"]),
        ("mapping", &["dict"]),
        ("sequence", &["str", "list", "tuple", "range", "dict", "Undefined"]),
    ];
    for (name, types) in typed {
        environment.add_test(name, move |value: &Value| types.contains(&type_of(value)));
    }
    environment.add_test("defined", |value: &Value| !value.is_undefined());
    environment.add_test("true", |value: &Value| type_of(value) == "bool" && value.is_true());
    environment.add_test("false", |value: &Value| type_of(value) == "bool" && !value.is_true());
    environment.add_test("callable", is_callable);
    environment.add_test("escaped", Value::is_safe);
    environment.add_test("iterable", is_iterable);
    environment.add_test("sameas", is_same);
    environment.add_test("even", |value: &Value| is_multiple(value, &Value::from(2)));
    environment.add_test("odd", |value: &Value| rest(value, &Value::from(2)).map(|rest| equal(&rest, &Value::from(1))));
    environment.add_test("divisibleby", is_multiple);
    let compared: [(&'static str, &'static [&'static str]); 7] = [
        ("==", &["==", "eq", "equalto"]),
        ("!=", &["!=", "ne"]),
        ("<", &["<", "lt", "lessthan"]),
        ("<=", &["<=", "le"]),
        (">", &[">", "gt", "greaterthan"]),
        (">=", &[">=", "ge"]),
        ("in", &["in"]),
    ];
    for (operator, names) in compared {
        for name in names {
            environment.add_test(*name, move |value: &Value, other: &Value| compare(operator, value, other));
        }
    }
    for name in ["lower", "upper"] {
        environment.add_test(name, move |state: &State<'_, '_>, value: &Value| {
            let text = Value::from(text(value)?);
            Ok::<_, Error>(methods::call(state, &text, &format!("is{name}"), &[])?.is_true())
        });
    }
    for (name, known) in [("filter", &FILTERS[..]), ("test", &TESTS[..])] {
        environment.add_test(name, move |value: &Value| match hashable(value) {
            true => Ok(value.as_str().is_some_and(|name| known.contains(&name))),
            false => Err(raised(format!("unhashable type: '{}'", type_of(value)))),
        });
    }
}

fn is_iterable(value: &Value) -> bool {
    match type_of(value) {
        "generator" => true,
        "object" => value.as_object().is_some_and(|object| object.type_name().ends_with("Loop")),
        _ => iterate(value).is_ok(),
    }
}

fn rest(value: &Value, of: &Value) -> Result<Value, Error> {
    sum("%", &Value::from(vec![value.clone(), of.clone()]))
}

fn is_multiple(value: &Value, of: &Value) -> Result<bool, Error> {
    rest(value, of).map(|rest| equal(&rest, &Value::from(0)))
}

/// `a is b`, where that does not depend on how Python keeps values.
fn is_same(value: &Value, other: &Value) -> Result<bool, Error> {
    let one = type_of(value);
    Ok(match one {
        _ if one != type_of(other) => false,
        "NoneType" => true,
        "bool" => equal(value, other),
        // Python keeps one of each of these.
        "int" if !equal(value, other) || integer(value).is_some_and(|number| (-5..=256).contains(&number)) => {
            equal(value, other)
        }
        _ if equal(value, other) || one == "object" => {
            return Err(raised(format!("whether two of '{one}' are the same is not known here")));
        }
        _ => false,
    })
}
