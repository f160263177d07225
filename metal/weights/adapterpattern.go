package weights

import (
	"encoding/json"
	"fmt"
	"regexp"
	"regexp/syntax"
	"slices"
	"strings"
	"unicode/utf8"

	"metalfleet.dev/metalfleet/metal/family"
)

// Limits of rank_pattern and alpha_pattern together. The patterns are text of others and
// are matched while a source is inspected, next to those of other tenants.
const (
	// maxPatterns bounds plain names: EVA writes one for each module.
	maxPatterns     = 4096
	maxExpressions  = 256
	maxPatternBytes = 256
	// maxInstructions bounds the compiled expressions: 40 bytes of memory each, about.
	maxInstructions = 4096
	// maxPatternWork bounds the matching of all modules: an instruction of an expression, or
	// a letter of a name, for each letter of a module's name. It takes 5 s at most.
	maxPatternWork = 1e8
	// aroundExpression has the instructions of an expression's optional beginning and its end.
	aroundExpression = 10
	// anyLetter is a full stop in the text of a pattern.
	anyLetter = rune(-1)
)

// pattern is a number for modules whose names end in what it matches, as peft has it: in
// (.*\.)?(KEY)$, or in KEY from the first letter on where it begins with ^.
type pattern struct {
	number float64
	// letters are what a pattern without other operators than ^ and . matches.
	letters []rune
	whole   bool
	// expression is any other pattern, and size what its program has of instructions.
	expression *regexp.Regexp
	size       int
}

// patternSet is the patterns of a configuration, and what they have cost.
type patternSet struct {
	ranks, alphas []pattern
	// names and expressions count the patterns, instructions those of all expressions.
	names, expressions, instructions int
	work                             int64
}

// read reads an object of numbers by pattern, or null. The first pattern that matches
// counts, so their order does.
func (s *patternSet) read(j *jsonReader, setting string) ([]pattern, error) {
	t, err := j.token()
	if err != nil || t == nil {
		return nil, err
	}
	if t != json.Delim('{') {
		return nil, j.invalid(setting + " is not an object")
	}
	var out []pattern
	err = j.fields(func(key string) error {
		v, err := j.value()
		if err != nil {
			return err
		}
		n, ok := number(v)
		if !ok {
			return j.invalid(setting + " of " + family.Quoted(key) + " is not a number")
		}
		p, err := s.compile(setting, key)
		p.number = n
		out = append(out, p)
		return err
	})
	return out, err
}

// compile reads a pattern. Nothing is compiled before its size is known.
func (s *patternSet) compile(setting, key string) (pattern, error) {
	if len(key) > maxPatternBytes {
		return pattern{}, family.Unsupported("pattern in "+setting, clipped(key), []string{fmt.Sprintf("at most %d bytes; write each name on its own", maxPatternBytes)})
	}
	parsed, err := syntax.Parse(key, syntax.Perl)
	if err != nil {
		return pattern{}, family.Unsupported("expression in "+setting, clipped(key), []string{"names of modules, and expressions that RE2 has"})
	}
	if p, ok := plainPattern(parsed); ok {
		if s.names++; s.names > maxPatterns {
			return p, tooManyPatterns(fmt.Sprintf("more than %d names", maxPatterns), fmt.Sprintf("at most %d; remove those that equal r or lora_alpha", maxPatterns))
		}
		return p, nil
	}
	size := aroundExpression + instructions(parsed)
	s.expressions++
	s.instructions += size
	switch {
	case s.expressions > maxExpressions:
		return pattern{}, tooManyPatterns(fmt.Sprintf("more than %d expressions", maxExpressions), fmt.Sprintf("at most %d; write names of modules in place of the others", maxExpressions))
	case s.instructions > maxInstructions:
		return pattern{}, tooManyPatterns(fmt.Sprintf("expressions of more than %d instructions, counted up to %s", maxInstructions, clipped(key)),
			"names of modules, and expressions without large repetitions and classes")
	}
	compiled, err := regexp.Compile(`^(?:.*\.)?(?:` + key + `)$`)
	if err != nil {
		return pattern{}, family.Unsupported("expression in "+setting, clipped(key), []string{"names of modules, and expressions that RE2 has"})
	}
	return pattern{expression: compiled, size: size}, nil
}

func tooManyPatterns(what, use string) error {
	return family.Unsupported("rank_pattern with alpha_pattern", what, []string{use})
}

// plainPattern is the pattern of an expression that has no operator but ^ and the full stop.
func plainPattern(e *syntax.Regexp) (p pattern, ok bool) {
	parts := []*syntax.Regexp{e}
	if e.Op == syntax.OpConcat {
		parts = e.Sub
	}
	for i, part := range parts {
		switch {
		case part.Op == syntax.OpBeginText && i == 0:
			p.whole = true
		case part.Op == syntax.OpEmptyMatch:
		case part.Op == syntax.OpAnyCharNotNL:
			p.letters = append(p.letters, anyLetter)
		case part.Op == syntax.OpLiteral && part.Flags&syntax.FoldCase == 0:
			p.letters = append(p.letters, part.Rune...)
		default:
			return pattern{}, false
		}
	}
	return p, true
}

// instructions is the most that the program of an expression has; counting stops above the
// limit of a configuration.
func instructions(e *syntax.Regexp) int {
	n := 0
	for _, sub := range e.Sub {
		n += instructions(sub)
	}
	switch e.Op {
	case syntax.OpLiteral:
		n = len(e.Rune)
	case syntax.OpCharClass:
		n = len(e.Rune) / 2 // ranges take memory and time like instructions
	case syntax.OpCapture:
		n += 2
	case syntax.OpStar, syntax.OpPlus, syntax.OpQuest:
		n++
	case syntax.OpAlternate:
		n += len(e.Sub)
	case syntax.OpRepeat: // x{2,4} becomes xx(x(x)?)?, and x{2,} becomes xx+
		n = max(e.Max, e.Min, 1)*n + max(e.Max-e.Min, 1)
	}
	return min(max(n, 1), maxInstructions+1)
}

// find returns the number of the first pattern that matches a module, or what else there
// is.
func (s *patternSet) find(of []pattern, module string, without float64) (float64, error) {
	for _, p := range of {
		matches := false
		if p.expression == nil {
			var compared int
			matches, compared = p.ends(module)
			s.work += int64(compared)
		} else if s.work += int64(p.size) * int64(len(module)+1); s.work <= maxPatternWork {
			matches = p.expression.MatchString(module)
		}
		if s.work > maxPatternWork {
			return 0, tooManyPatterns(fmt.Sprintf("more than %d comparisons with names of modules", int64(maxPatternWork)), "fewer patterns; write names of modules in place of expressions")
		}
		if matches {
			return p.number, nil
		}
	}
	return without, nil
}

// ends reports whether a module's name is, or ends after a full stop in, the letters of the
// pattern, and how many letters were compared.
func (p pattern) ends(module string) (matches bool, compared int) {
	for _, want := range slices.Backward(p.letters) {
		compared++
		got, size := utf8.DecodeLastRuneInString(module)
		if size == 0 || got != want && (want != anyLetter || got == '\n') {
			return false, compared
		}
		module = module[:len(module)-size]
	}
	return module == "" || !p.whole && strings.HasSuffix(module, ".") && !strings.Contains(module, "\n"), compared + 1
}
