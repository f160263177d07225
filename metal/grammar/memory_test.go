package grammar

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
)

// listed is n times a part, separated by commas.
func listed(part string, n int) string {
	return strings.TrimSuffix(strings.Repeat(part+",", n), ",")
}

// references are schemas of which each refers to the next, with no value in between.
func references(n int) string {
	var b strings.Builder
	b.WriteString(`{"$ref":"#/x-/1","x-":[0`)
	for i := 1; i < n; i++ {
		fmt.Fprintf(&b, `,{"$ref":"#/x-/%d"}`, i+1)
	}
	b.WriteString(`,{}]}`)
	return b.String()
}

// allocated compiles a constraint, and checks that it takes no more than this many MiB in all, and
// no more work than the budget.
func allocated(t *testing.T, s Spec, most uint64) {
	t.Helper()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, work, err := compiled(t.Context(), s)
	runtime.ReadMemStats(&after)
	if err != nil && !errors.Is(err, errLimit) {
		t.Error(err)
	}
	all := (after.TotalAlloc - before.TotalAlloc) >> 20
	t.Logf("%d MiB, %d units of work, %v", all, work, err)
	if all > most {
		t.Errorf("%d MiB are allocated, want at most %d", all, most)
	}
	if most := int64(compileWork + maxNodes/2); work > most { // a text is counted at once
		t.Errorf("%d units of work, want at most %d", work, most)
	}
}

// taggedCall is calls of one function with a parameter between tags.
func taggedCall(name, parameter string) Spec {
	tags := Tags{Open: "<parameter=", Then: ">", Close: "</parameter>", End: "</function>"}
	form := Form{Style: Tagged, Before: "<function=", Middle: ">", Tags: tags}
	return Spec{Kind: Functions, Calls: &Calls{Sloppy: true, Free: true,
		Functions: []Function{{name, `{"properties":{` + quoted(parameter) + `:{"type":"string"}}}`}},
		Groups:    []Group{{Begin: "<tool_call>", Chains: []Chain{{Forms: []Form{form}}}}},
		First:     []Group{{Begin: `{"name": "` + name + `"`, Only: name, Chains: []Chain{{Forms: []Form{{Style: JSON}}}}}}}}
}

// manyFirst are calls of functions whose names begin the text.
func manyFirst(n int) Spec {
	s := taggedCall("f", "p")
	chains := []Chain{{Forms: []Form{{Style: JSON, Before: "{", After: "}"}}}}
	s.Calls.Functions, s.Calls.First, s.Calls.Groups[0].Chains = nil, nil, chains
	for i := range n {
		name := fmt.Sprintf("f%d", i)
		s.Calls.Functions = append(s.Calls.Functions, Function{name, "{"})
		s.Calls.First = append(s.Calls.First, Group{Begin: `{"name": "` + name + `"`, Only: name, Chains: chains})
	}
	return s
}

// TestAStepTakesTheMemoryOfItsItems: a byte that leads on in many ways from each of many items
// takes no memory for those beyond what one state may have.
func TestAStepTakesTheMemoryOfItsItems(t *testing.T) {
	var root, class strings.Builder
	for i := range 1000 {
		fmt.Fprintf(&root, `| c "%d" `, i)
		class.WriteRune(rune(0x4000 + 2*i))
	}
	g, err := Compile(t.Context(), Spec{Kind: EBNF, Source: "root ::= " + strings.TrimPrefix(root.String(), "|") + "\nc ::= [" + class.String() + "]"})
	if err != nil {
		t.Fatal(err)
	}
	v, _ := vocabularyOf(100)
	m := NewTable(g, v).Match(false)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err = m.Follow(t.Context(), []byte("\xe4"))
	runtime.ReadMemStats(&after)
	if !errors.Is(err, ErrAmbiguous) {
		t.Errorf("error %v, want %v", err, ErrAmbiguous)
	}
	if all := (after.TotalAlloc - before.TotalAlloc) >> 20; all > 4 {
		t.Errorf("%d MiB are allocated for a state that has at most %d items", all, maxItems)
	}
}

// TestAttackNamesInFreeText: text in which marks are looked for takes work and memory in proportion
// to the names in its marks, also where each of them begins like the others.
func TestAttackNamesInFreeText(t *testing.T) {
	alike := func(n int) string { return strings.Repeat("\n<parameter=", n) }
	work := map[int]int64{}
	for _, n := range []int{1000, 2000} {
		_, spent, err := compiled(t.Context(), taggedCall("f", alike(n)))
		if err != nil {
			t.Fatal(err)
		}
		work[n] = spent
	}
	if 10*work[2000] > 22*work[1000] {
		t.Errorf("%d units of work, and %d for twice as much", work[1000], work[2000])
	}
	for name, s := range map[string]Spec{
		"a long parameter": taggedCall("f", alike(4000)),
		"many functions":   manyFirst(1000),
		"a long function":  taggedCall(strings.Repeat("a", 200_000), "p"),
	} {
		t.Run(name, func(t *testing.T) {
			allocated(t, s, 128)
		})
	}
}
