//go:build !race

package toolcall

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
)

// manyValues begins a schema with n alternatives that all refer to an enumeration of n values,
// and with a list of n required members.
func manyValues(n int) string {
	values := make([]string, n)
	for i := range values {
		values[i] = []string{`"%d"`, `%d`, `%d.5`, `[%d]`}[i%4]
		values[i] = fmt.Sprintf(values[i], i)
	}
	alternatives := strings.TrimSuffix(strings.Repeat(`{"$ref":"#/$defs/x"},`, n), ",")
	return `{"$defs":{"x":{"enum":[` + strings.Join(values, ",") + `]},"y":{"anyOf":[` + alternatives + `]}},"required":[` + strings.Repeat(`"p0",`, n) + `"p1"],`
}

// allocated is how much memory a parser takes for an answer, once the tools were read.
func allocated(t *testing.T, f Format, schema, answer string) (objects, bytes uint64) {
	t.Helper()
	all, err := ReadTools([]byte(`[{"function":{"name":"f","parameters":` + schema + `}}]`))
	if err != nil {
		t.Fatal(err)
	}
	p, err := New(f, all, Options{Held: true})
	if err != nil {
		t.Fatal(err)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	p.Push(answer)
	p.Flush(true)
	runtime.ReadMemStats(&after)
	return after.Mallocs - before.Mallocs, after.TotalAlloc - before.TotalAlloc
}

// TestAttackSchemasOfManyValues: answers are read on the loop of an engine that tenants share.
// What a schema declares is looked up once, so a large one makes an answer's values take no
// more memory than a small one.
func TestAttackSchemasOfManyValues(t *testing.T) {
	const values = 1000
	numbers := strings.TrimSuffix(strings.Repeat("1.0, ", values), ", ")
	rows := strings.TrimSuffix(strings.Repeat(`{"n": 1.0}, `, values), ", ")
	var names, properties []string
	for i := range values {
		names = append(names, fmt.Sprintf("<parameter=p%d>\n1.0\n</parameter>\n", i))
		properties = append(properties, fmt.Sprintf(`"p%d":{"$ref":"#/$defs/y"}`, i))
	}
	for name, tc := range map[string]struct {
		format Format
		schema string // after the definitions
		answer string
	}{
		"numbers of a list": {Hermes, `"properties":{"a":{"items":{"$ref":"#/$defs/y"}}}}`, `<tool_call>{"name": "f", "arguments": {"a": [` + numbers + `]}}</tool_call>`},
		"objects of a list": {Hermes, `"properties":{"a":{"items":{"additionalProperties":{"$ref":"#/$defs/y"}}}}}`, `<tool_call>{"name": "f", "arguments": {"a": [` + rows + `]}}</tool_call>`},
		"nested objects":    {Hermes, `"properties":{"n":{"$ref":"#"},"x":{"$ref":"#/$defs/y"}}}`, `<tool_call>{"name": "f", "arguments": ` + strings.Repeat(`{"x": 1.0, "n": `, 200) + "1.0" + strings.Repeat("}", 200) + `}</tool_call>`},
		"parameters":        {QwenXML, `"properties":{` + strings.Join(properties, ",") + `}}`, "<tool_call>\n<function=f>\n" + strings.Join(names, "") + "</function>\n</tool_call>"},
		"ends in a value":   {QwenXML, `"properties":{` + strings.Join(properties, ",") + `}}`, "<tool_call>\n<function=f>\n<parameter=p0>\n" + strings.Repeat("</function>\n<tool_call>\n", values)},
		"messages":          {Harmony, `"properties":{"a":{"$ref":"#/$defs/y"}}}`, strings.Repeat(`<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": 1.0}<|call|>`, values)},
	} {
		t.Run(name, func(t *testing.T) {
			fewObjects, fewBytes := allocated(t, tc.format, manyValues(4)+tc.schema, tc.answer)
			objects, bytes := allocated(t, tc.format, manyValues(values)+tc.schema, tc.answer)
			if objects > fewObjects+values || bytes > fewBytes+fewBytes/2 {
				t.Errorf("an answer of %d values took %d objects and %d bytes; want about %d and %d, as with a small schema", values, objects, bytes, fewObjects, fewBytes)
			}
		})
	}
}

// argumentsRead are the arguments of a call as they are read with a schema.
func argumentsRead(t *testing.T, schema, arguments string) string {
	t.Helper()
	all, err := ReadTools([]byte(`[{"function":{"name":"f","parameters":` + schema + `}}]`))
	if err != nil {
		t.Fatal(err)
	}
	p, err := New(Hermes, all, Options{})
	if err != nil {
		t.Fatal(err)
	}
	got := read(p, false, `<tool_call>{"name": "f", "arguments": `+arguments+`}</tool_call>`)
	if len(got) != 1 {
		t.Fatalf("%d events", len(got))
	}
	return strings.TrimPrefix(got[0], "C f ")
}

// A value that many schemas apply to, or that references lead to, is read as they declare; past
// the bounds, and where references have no end, it stays as it was written.
func TestSchemasDeclareTypesUpToTheirBounds(t *testing.T) {
	// chain is a row of n references, the last to an integer.
	chain := func(n int) string {
		var definitions strings.Builder
		for i := range n {
			fmt.Fprintf(&definitions, `"d%03d":{"$ref":"#/$defs/d%03d"},`, i, i+1)
		}
		return fmt.Sprintf(`{"$defs":{%s"d%03d":{"type":"integer"}},"properties":{"a":{"$ref":"#/$defs/d000"}}}`, definitions.String(), n)
	}
	named := func(n int) string {
		name := strings.Repeat("n", n)
		return `{"$defs":{"` + name + `":{"type":"integer"}},"properties":{"a":{"$ref":"#/$defs/` + name + `"}}}`
	}
	cycle := `{"$defs":{"a":{"allOf":[{"$ref":"#/$defs/b"},{"type":"integer"}]},"b":{"allOf":[{"$ref":"#/$defs/a"},{"type":"integer"}]}},"properties":{"a":{"$ref":"#/$defs/%s"}}}`
	for name, tc := range map[string]struct{ schema, want string }{
		"many alternatives":     {`{"properties":{"a":{"anyOf":[` + strings.Repeat(`{"const":1},`, 200) + `{"type":"null"}]}}}`, "1"},
		"one is a number":       {`{"properties":{"a":{"anyOf":[` + strings.Repeat(`{"const":1},`, 200) + `{"type":"number"}]}}}`, "1.0"},
		"references":            {chain(200), "1"},
		"a long reference":      {named(maxReferences - len("#/$defs/")), "1"},
		"too long references":   {named(maxReferences), "1.0"},
		"too many references":   {chain(300), "1.0"},
		"a cycle":               {fmt.Sprintf(cycle, "a"), "1.0"},
		"its other end":         {fmt.Sprintf(cycle, "b"), "1.0"},
		"a reference to true":   {`{"$defs":{"a":true},"properties":{"a":{"$ref":"#/$defs/a","anyOf":[{"type":"integer"}]}}}`, "1.0"},
		"a reference to no end": {`{"properties":{"a":{"$ref":"#/$defs/a","anyOf":[{"type":"integer"}]}}}`, "1"},
		"an escaped reference":  {`{"$defs":{"a/b~":{"type":"integer"}},"properties":{"a":{"$ref":"#/%24defs/a~1b~0"}}}`, "1"},
	} {
		if got, want := argumentsRead(t, tc.schema, `{"a": 1.0}`), `{"a": `+tc.want+`}`; got != want {
			t.Errorf("%s: read %s, want %s", name, got, want)
		}
	}
}

// Each item of a long list may have its own schema. What is kept for a request is bounded.
func TestItemsOfTheirOwnSchemasUpToABound(t *testing.T) {
	list := func(item string) string {
		return strings.TrimSuffix(strings.Repeat(item+", ", 2*maxSteps), ", ")
	}
	got := argumentsRead(t, `{"properties":{"a":{"prefixItems":[`+list(`{"type":"integer"}`)+`]}}}`, `{"a": [`+list("1.0")+`]}`)
	numbers := strings.Split(strings.TrimSuffix(strings.TrimPrefix(got, `{"a": [`), "]}"), ", ")
	for i, number := range numbers {
		if want := map[bool]string{true: "1", false: "1.0"}[i+1 < maxSteps]; number != want {
			t.Fatalf("number %d is %s, want %s", i, number, want)
		}
	}
	if len(numbers) != 2*maxSteps {
		t.Errorf("%d numbers", len(numbers))
	}
}

// A schema that contains itself is one schema, however large the value is.
func TestValuesOfARecursiveSchema(t *testing.T) {
	var tree func(depth int, number string) string
	tree = func(depth int, number string) string {
		if depth == 0 {
			return number
		}
		return `{"n": ` + number + `, "l": ` + tree(depth-1, number) + `, "r": ` + tree(depth-1, number) + `}`
	}
	const depth = 13
	got := argumentsRead(t, `{"properties":{"n":{"type":"integer"},"l":{"anyOf":[{"type":"integer"},{"$ref":"#"}]},"r":{"$ref":"#/properties/l"}},"type":"object"}`, tree(depth, "1.0"))
	if got != tree(depth, "1") {
		t.Errorf("%d of %d numbers are not read as integers", strings.Count(got, "1.0"), strings.Count(tree(depth, "1"), "1"))
	}
}
