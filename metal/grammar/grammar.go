// Package grammar computes which tokens may come next where an answer has to have a
// form: JSON of a schema, a regular expression, a grammar, one of some texts, calls
// of functions.
//
// It owns the compilers of these five into one automaton over bytes with a stack
// (Grammar), its states, made as they are met, and the masks over a vocabulary,
// found by walking the tokens as a trie and kept with each state. It refuses
// what it cannot enforce, with a sentence that names the keyword, and what
// exceeds its bounds of size or its budget of work (work.go): a constraint is never
// dropped, and never a hang. What it lets through may be less than what a constraint
// allows (members of objects come in the order of the schema, blanks are bounded),
// never more, and from wherever an answer has got to, some way leads to its end.
//
// It knows no requests and no logits: a sampler asks a Matcher for the mask and
// advances it by the token. Start reading at Compile, then matcher.go, state.go and mask.go.
package grammar

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// Errors of constraints. Each says in its text what to do.
var (
	// ErrInvalid: it is no schema, expression or grammar, or nothing satisfies it.
	ErrInvalid = errors.New("the constraint is invalid")
	// errUnsupported: the constraint has a part that cannot be enforced.
	errUnsupported = errors.New("the constraint is not supported")
	// errLimit: the constraint is too large to compile.
	errLimit = errors.New("the constraint is too large")
)

// Error describes what is wrong with a constraint, and where.
type Error struct {
	// Keyword at fault, or the rule of a grammar; may be empty.
	Keyword string
	// Path of the schema, as a JSON pointer; empty elsewhere.
	Path string
	// Message is a sentence for the client.
	Message string
	kind    error
}

func (e *Error) Error() string {
	if e.Path == "" {
		return e.Message
	}
	return fmt.Sprintf("%s (at %s of the schema)", e.Message, e.Path)
}

// Is tells the three kinds apart.
func (e *Error) Is(target error) bool { return target == e.kind }

// Bounds of what is compiled.
const (
	maxSource = 256 << 10
	maxNodes  = 200_000
	maxEdges  = 10 * maxNodes
	// maxDepth of calls: JSON nested deeper cannot be said.
	maxDepth = 256
)

func tooLarge(what string, most int) *Error {
	return &Error{kind: errLimit, Message: fmt.Sprintf("the constraint is too large: it needs more than %d %s; simplify it", most, what)}
}

// Kind is the language of a constraint.
type Kind int

// The kinds of constraints.
const (
	// JSONObject is any JSON object; Source is not read.
	JSONObject Kind = iota
	// JSONSchema of the dialect 2020-12 or 7.
	JSONSchema
	// Regex that the whole answer matches.
	Regex
	// EBNF as llama.cpp writes it (GBNF), from the rule root.
	EBNF
	// Choice of the texts of Spec.Choices.
	Choice
	// Functions are called as in Spec.Calls.
	Functions
)

// Spec is a constraint as a client sends it.
type Spec struct {
	Kind    Kind
	Source  string
	Choices []string
	Calls   *Calls
	// Else is the form of an answer without calls, where Kind is Functions and the
	// Calls are not Free; nil requires calls.
	Else *Spec
}

// check refuses what is too large to look at.
func (s Spec) check() error {
	if len(s.Source) > maxSource {
		return tooLarge("bytes of source", maxSource)
	}
	all := 0
	for _, c := range s.Choices {
		all += len(c)
	}
	if len(s.Choices) > maxChoices || all > maxChoiceBytes {
		return &Error{kind: errLimit, Keyword: "choice", Message: fmt.Sprintf("too many choices: at most %d choices of %d bytes in total are supported", maxChoices, maxChoiceBytes)}
	}
	if s.Calls != nil {
		all = 0
		for _, f := range s.Calls.Functions {
			all += len(f.Name) + len(f.Schema)
		}
		if len(s.Calls.Functions) > maxChoices || all > maxSource {
			return &Error{kind: errLimit, Message: fmt.Sprintf("too many functions: at most %d are supported, with names and schemas of %d bytes in total", maxChoices, maxSource)}
		}
	}
	if s.Else != nil {
		return s.Else.check()
	}
	return nil
}

// Grammar is a compiled constraint: rules that are automata with edges for
// bytes, for nothing, and for calls of other rules. It is immutable.
type Grammar struct {
	nodes []fixedNode
	edges []edge
	rules []int32 // first node of each
	// start is the rule of an answer, afterReasoning that of an answer that
	// follows reasoning.
	start, afterReasoning int32
	// wants are what the edges of the kind edgeAll need.
	wants []want
	// class of each byte: bytes of one class are alike to every edge; sample is
	// one byte of each.
	class   [256]uint8
	classes int
	sample  []byte
	bytes   int64
}

type edgeKind uint8

const (
	edgeEmpty edgeKind = iota
	edgeBytes
	edgeCall
	// edgeTake takes the member lo of the rule, once; edgeHas is open once that was taken, and
	// edgeAll once all members of the want that rule numbers were.
	edgeTake
	edgeHas
	edgeAll
)

type edge struct {
	kind   edgeKind
	lo, hi byte
	rule   int32
	to     int32
}

// maxTaken is how many members of one rule can be distinguished.
const maxTaken = 64

// want is a set of members, and the first nodes of the rules of their values.
type want struct {
	members uint64
	nodes   []int32
}

// across follows an edge that takes no byte and calls no rule, if it is open where members
// were taken.
func (g *Grammar) across(e edge, taken uint64) (uint64, bool) {
	switch bit := uint64(1) << e.lo; e.kind {
	case edgeTake:
		return taken | bit, taken&bit == 0
	case edgeHas:
		return taken, taken&bit != 0
	case edgeAll:
		return 0, taken&g.wants[e.rule].members == g.wants[e.rule].members
	}
	return taken, true
}

// node of a builder.
type node struct {
	edges []edge
	// final ends the rule.
	final bool
}

// fixedNode has the edges from first up to end of its grammar.
type fixedNode struct {
	first, end int32
	// need is the call depth of the shortest path to the end of the rule,
	// unreachable if there is none.
	need int32
	// final ends the rule.
	final bool
}

const unreachable = 1 << 30

// out are the edges of a node.
func (g *Grammar) out(n *fixedNode) []edge { return g.edges[n.first:n.end] }

// Compile compiles a constraint within a budget of work. The error is an
// *Error, or that of ctx.
func Compile(ctx context.Context, s Spec) (*Grammar, error) {
	return compile(newMeter(ctx, nil), s)
}

// newMeter counts the work and the bytes of a compilation, which goes through the lane if
// there is one.
func newMeter(ctx context.Context, l *lane) *meter {
	return &meter{
		ctx: ctx, left: compileWork, quick: compileWork, next: compileWork, lane: l, most: heavyBytes,
		exceeded: &Error{kind: errLimit, Message: "the constraint takes too much work to compile; simplify it"},
		full:     &Error{kind: errLimit, Message: "the constraint takes too much memory to compile; simplify it, or split it into several requests"},
	}
}

func compile(m *meter, s Spec) (*Grammar, error) {
	defer m.done()
	g, err := build(m, s)
	if m.err != nil {
		return nil, m.err // what could not be finished may look like another fault
	}
	return g, err
}

func build(m *meter, s Spec) (*Grammar, error) {
	if err := s.check(); err != nil {
		return nil, err
	}
	b := newBuilder(m)
	e, err := b.compile(s)
	if err != nil {
		return nil, err
	}
	start, afterReasoning := b.rule(), b.rule()
	b.fill(start, e)
	b.fill(afterReasoning, seq{repeat{literal("\n"), 0, 2}, ref(start)})
	if s.Kind == JSONObject || s.Kind == JSONSchema {
		first := b.rule()
		b.fill(first, seq{blankBeforeJSON(), ref(start)})
		start = first
	}
	if b.err != nil {
		return nil, b.err
	}
	return b.finish(start, afterReasoning)
}

func (b *builder) compile(s Spec) (expr, error) {
	switch s.Kind {
	case JSONObject:
		return compileSchema(b, `{"type":"object"}`)
	case JSONSchema:
		return compileSchema(b, s.Source)
	case Regex:
		return compileRegex(b, s.Source)
	case EBNF:
		return compileEBNF(b, s.Source)
	case Choice:
		return compileChoice(s.Choices)
	case Functions:
		return compileFunctions(b, s)
	}
	return nil, &Error{kind: ErrInvalid, Message: fmt.Sprintf("unknown constraint kind %d", s.Kind)}
}

// blankBeforeJSON is what models write before JSON at times.
func blankBeforeJSON() expr { return alt{literal(""), literal(" "), literal("\n")} }

const (
	maxChoices     = 1024
	maxChoiceBytes = 64 << 10
)

func compileChoice(choices []string) (expr, error) {
	if len(choices) == 0 {
		return nil, &Error{kind: ErrInvalid, Keyword: "choice", Message: "choice is empty; list at least one text"}
	}
	var out alt
	for _, c := range choices {
		if c == "" {
			return nil, &Error{kind: ErrInvalid, Keyword: "choice", Message: "choice contains an empty text; each text needs at least one character"}
		}
		out = append(out, literal(c))
	}
	return out, nil
}

// finish drops what leads nowhere and refuses what cannot be walked.
func (b *builder) finish(start, afterReasoning int32) (*Grammar, error) {
	g := &Grammar{rules: b.rules, start: start, afterReasoning: afterReasoning, wants: b.wants}
	g.nodes, g.edges = b.fixed()
	g.measure(b.meter)
	if b.meter.err != nil {
		return nil, b.meter.err
	}
	if g.nodes[g.rules[start]].need >= unreachable {
		return nil, &Error{kind: ErrInvalid, Message: "the constraint cannot be satisfied: its parts exclude one another"}
	}
	if g.nodes[g.rules[start]].need > maxDepth/2 {
		return nil, tooLarge("levels of nesting", maxDepth/2)
	}
	if err := g.refuseLeftRecursion(b.meter); err != nil {
		return nil, err
	}
	g.classify()
	g.bytes = g.size()
	return g, nil
}

// fixed are the nodes and edges in the least room. The builder has none afterwards.
func (b *builder) fixed() ([]fixedNode, []edge) {
	all := 0
	for i := range b.nodes {
		all += len(b.nodes[i].edges)
	}
	nodes, edges := make([]fixedNode, len(b.nodes)), make([]edge, 0, all)
	for i, n := range b.nodes {
		first := int32(len(edges))
		edges = append(edges, n.edges...)
		nodes[i] = fixedNode{first: first, end: int32(len(edges)), final: n.final}
	}
	b.nodes = nil
	return nodes, edges
}

// measure computes for each node the call depth of the shortest path to its
// rule's end, and drops edges from which no end can be reached.
func (g *Grammar) measure(m *meter) {
	type edgeAt struct{ node, edge int32 }
	into := make([][]edgeAt, len(g.nodes)) // which edges are looked at again when this changes
	for i := range g.nodes {
		n := &g.nodes[i]
		n.need = unreachable
		for at, e := range g.out(n) {
			here := edgeAt{int32(i), int32(at)}
			into[e.to] = append(into[e.to], here)
			for _, first := range g.needed(e) {
				into[first] = append(into[first], here)
			}
		}
	}
	var work []int32 // nodes that changed
	for i := range g.nodes {
		if g.nodes[i].final {
			g.nodes[i].need = 0
			work = append(work, int32(i))
		}
	}
	for len(work) > 0 {
		changed := work[len(work)-1]
		work = work[:len(work)-1]
		for _, at := range into[changed] {
			n := &g.nodes[at.node]
			e := g.out(n)[at.edge]
			if !m.spend(1 + len(g.needed(e))) {
				return
			}
			if need := g.edgeNeed(e); need < n.need {
				n.need = need
				work = append(work, at.node)
			}
		}
	}
	for i := range g.nodes {
		n := &g.nodes[i]
		kept := slices.DeleteFunc(g.out(n), func(e edge) bool { return g.edgeNeed(e) >= unreachable })
		n.end = n.first + int32(len(kept))
	}
}

// edgeNeed is the call depth of the shortest path to the rule's end that begins
// with an edge.
func (g *Grammar) edgeNeed(e edge) int32 {
	need := g.nodes[e.to].need
	for _, first := range g.needed(e) {
		need = max(need, g.nodes[first].need+1)
	}
	return min(need, unreachable)
}

// needed are the first nodes of the rules on which an edge depends: of the one that it
// calls, or of the values of all members that it wants.
func (g *Grammar) needed(e edge) []int32 {
	switch e.kind {
	case edgeCall:
		return g.rules[e.rule : e.rule+1]
	case edgeAll:
		return g.wants[e.rule].nodes
	}
	return nil
}

// classify groups bytes that no edge distinguishes into classes.
func (g *Grammar) classify() {
	var cut [257]bool
	cut[0] = true
	for _, b := range []int{0x20, '"', '"' + 1, '\\', '\\' + 1, 0x80, 0xc0, 0xc2, 0xe0, 0xe1, 0xed, 0xee, 0xf0, 0xf1, 0xf4, 0xf5, 0x90, 0xa0} {
		cut[b] = true // what safe text is made of, see run
	}
	for i := range g.nodes {
		for _, e := range g.out(&g.nodes[i]) {
			if e.kind == edgeBytes {
				cut[e.lo], cut[int(e.hi)+1] = true, true
			}
		}
	}
	for b := range 256 {
		if cut[b] {
			g.classes++
			g.sample = append(g.sample, byte(b))
		}
		g.class[b] = uint8(g.classes - 1)
	}
}

// tableCost is what a grammar and its table take besides nodes and states.
const tableCost = 2300

// Bytes that the grammar itself takes, about.
func (g *Grammar) Bytes() int64 { return g.bytes }

func (g *Grammar) size() int64 {
	n := tableCost + int64(len(g.nodes))*16 + int64(len(g.edges))*12 + int64(cap(g.rules))*4
	for _, w := range g.wants {
		n += 32 + int64(len(w.nodes))*4
	}
	return n
}
