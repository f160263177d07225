package weights

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"regexp/syntax"
	"strings"
	"testing"
)

// patternConfig is a configuration with these patterns of ranks, each with its number.
func patternConfig(t *testing.T, patterns ...string) AdapterConfig {
	t.Helper()
	numbers := map[string]int{}
	for i, p := range patterns {
		numbers[p] = i + 1
	}
	text, err := json.Marshal(map[string]any{"peft_type": "LORA", "r": 1, "lora_alpha": 1, "rank_pattern": numbers})
	if err != nil {
		t.Fatal(err)
	}
	c, err := ParseAdapterConfig(text)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestPatternsMatchAsExpressionsDo: a pattern that is compared by its letters matches the
// names that peft's expression does.
func TestPatternsMatchAsExpressionsDo(t *testing.T) {
	modules := []string{
		"", ".", "q_proj", "q.proj", "qq_proj", "self_attn.q_proj", "x.q_proj", "model.layers.1.self_attn.q_proj", "model.layers.11.self_attn.q_proj",
		"model.layers.1.self_attn_q_proj", "layers.1.self_attn.q_proj", "model.layers.1.self_attn.q_projx", "ä.q_proj", "qäproj", "a\n.q_proj", "q\nproj",
	}
	for pattern, plain := range map[string]bool{
		"q_proj": true, "q.proj": true, `q\.proj`: true, "self_attn.q_proj": true, "^q_proj": true, "^layers.1.self_attn.q_proj": true, `^model\.layers\.1\.self_attn\.q_proj`: true,
		"layers.1.self_attn.q_proj": true, "": true, ".": true, "qäproj": true, "..proj": true,
		"q_proj|k_proj": false, "(?i)Q_PROJ": false, `layers\.\d+\.self_attn\.q_proj`: false, "[qk]_proj": false, "q_proj$": false, "(q_proj)": false, ".*": false, "a?": false, "x.^q_proj": false,
	} {
		c := patternConfig(t, pattern)
		if got := c.patterns.ranks[0].expression == nil; got != plain {
			t.Errorf("%q is compared by its letters: %v", pattern, got)
		}
		as := regexp.MustCompile(`^(?:.*\.)?(?:` + pattern + `)$`)
		for _, m := range modules {
			n, err := c.patterns.find(c.patterns.ranks, m, 0)
			if err != nil || (n == 1) != as.MatchString(m) {
				t.Errorf("%q with %q: %v, %v", pattern, m, n, err)
			}
		}
	}
}

// TestTheSizeOfAPatternIsNoLess than that of its program.
func TestTheSizeOfAPatternIsNoLess(t *testing.T) {
	for _, pattern := range []string{
		"a|b", "abc|abd|xyz|", "(a)(b)(c)", "(?:abc){7}", "(?:abc){3,}", "(?:a|bc){2,9}", "((a{3}){4}){5}", "a*b+c?d*?", "(?:a{0,3}){0,5}", "(?i)straße{3}", `\w+\.\d{1,3}\b`,
		"^(a|b)*$", "(?:){50}", "a{0}", "[^a-z]{4}", "(?s).{9}", "(?:a*)*", "(?:|a|b|cd)+", "((((((a))))))", `\pL{20}`,
	} {
		parsed, err := syntax.Parse(pattern, syntax.Perl)
		if err != nil {
			t.Fatal(err)
		}
		whole, err := syntax.Parse(`^(?:.*\.)?(?:`+pattern+`)$`, syntax.Perl)
		if err != nil {
			t.Fatal(err)
		}
		program, err := syntax.Compile(whole.Simplify())
		if err != nil {
			t.Fatal(err)
		}
		size := aroundExpression + instructions(parsed)
		if got := len(program.Inst); got > size {
			t.Errorf("%s has %d instructions, counted %d", pattern, got, size)
		}
		if ranges := strings.Contains(pattern, "pL"); size > 2*len(program.Inst)+20 && !ranges {
			t.Errorf("%s has %d instructions, counted %d", pattern, len(program.Inst), size)
		}
	}
}

// TestAttackPatternsForManyModules: matching ends with an error, for any number of
// modules.
func TestAttackPatternsForManyModules(t *testing.T) {
	var expressions, names []string
	for i := range 150 {
		expressions = append(expressions, fmt.Sprintf("(a|b)+%d", i))
	}
	for i := range 4000 {
		names = append(names, fmt.Sprintf("%04d%s", i, strings.Repeat("a", 200)))
	}
	for what, patterns := range map[string][]string{"expressions": expressions, "names": names} {
		c := patternConfig(t, patterns...)
		c.patterns.work = maxPatternWork / 10 * 9 // of modules before
		module, modules := strings.Repeat("a", maxModuleBytes), 0
		var err error
		for ; err == nil && modules < 1000; modules++ {
			_, err = c.scaleOf(module, 1)
		}
		if !errors.Is(err, ErrUnsupported) || !strings.Contains(err.Error(), "comparisons") {
			t.Errorf("%s: %v after %d modules", what, err, modules)
		}
		if modules < 4 {
			t.Errorf("%s: refused after %d modules", what, modules)
		}
	}
}
