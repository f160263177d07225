//go:build goexperiment.simd && amd64

package ref_test

import (
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// TestVectorLoopsHoldNoLegacySSE reads the compiler's listing of this package.
// Between an instruction that uses YMM or ZMM registers and the next VZEROUPPER,
// an instruction of the legacy encoding that writes an XMM register has to
// preserve the upper half of the register. Some Intel processors switch to
// another state for it and back: 160 ns and more for each pair of switches,
// measured on Sapphire Rapids, where a store or a comparison costs nothing extra.
// AMD processors do not show it.
func TestVectorLoopsHoldNoLegacySSE(t *testing.T) {
	cmd := exec.Command("go", "build", "-gcflags=-S", ".")
	cmd.Env = append(os.Environ(), "GOEXPERIMENT=simd")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("go build -gcflags=-S: %v\n%s", err, out)
	}
	l := parseListing(string(out))
	for _, loop := range []string{"vectorDots", "wideDots", "vectorScaled", "accumulateFour", "expFour"} {
		if !l.wide["metalfleet.dev/metalfleet/metal/ref."+loop] {
			t.Errorf("the listing has no vector instruction in %s", loop)
		}
	}
	for _, fault := range l.faults() {
		t.Error(fault)
	}
}

func TestLegacySSEIsFoundAfterVectorInstructions(t *testing.T) {
	for _, c := range []struct {
		name, code string
		faults     int
	}{
		{"in a loop, before the first vector", "TEXT a; MOVQ AX, X1; VPADDB Y1, Y2, Y3; JNE 1; VZEROUPPER; RET", 1},
		{"before all vectors", "TEXT a; MOVQ AX, X1; VPADDB Y1, Y2, Y3; VZEROUPPER; RET", 0},
		{"after VZEROUPPER", "TEXT a; VPADDB Y1, Y2, Y3; VZEROUPPER; MOVQ AX, X1; RET", 0},
		{"jumped over", "TEXT a; VPADDB Z1, Z2, Z3; JMP 4; MOVQ AX, X1; VZEROUPPER; RET", 0},
		{"in the caller", "TEXT a; VPADDB Y1, Y2, Y3; RET; TEXT b; CALL a(SB); MULSS X0, X1; RET", 1},
		{"a call of scalar code", "TEXT a; VPADDB Y1, Y2, Y3; CALL math.Exp(SB); VZEROUPPER; RET", 1},
		{"a panic", "TEXT a; VPADDB Y1, Y2, Y3; CALL runtime.panicBounds(SB)", 0},
		{"a store", "TEXT a; VPADDB Y1, Y2, Y3; MOVSS X1, 8(SP); VZEROUPPER; RET", 0},
		{"the AVX encoding", "TEXT a; VPADDB Y1, Y2, Y3; VMOVQ AX, X1; VZEROUPPER; RET", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			var text strings.Builder
			for pc, line := range strings.Split(c.code, "; ") {
				op, args, _ := strings.Cut(line, " ")
				if op == "TEXT" {
					args += "(SB), NOSPLIT"
				}
				fmt.Fprintf(&text, "\t0x0000 %05d (p/p.go:1)\t%s\t%s\n", pc, op, args)
			}
			if got := parseListing(text.String()).faults(); len(got) != c.faults {
				t.Errorf("%d faults, want %d: %v", len(got), c.faults, got)
			}
		})
	}
}

// instruction is one line of the compiler's listing.
type instruction struct {
	function, at string
	op, args     string
}

// writesLegacy reports whether the instruction writes an XMM register in the legacy
// encoding: those of AVX begin with V, and the last operand is the destination.
func (in instruction) writesLegacy() bool {
	return !strings.HasPrefix(in.op, "V") && legacyTarget.MatchString(in.args)
}

// callee is the function that a CALL names.
func (in instruction) callee() string { return strings.TrimSuffix(in.args, "(SB)") }

var (
	listed       = regexp.MustCompile(`(?m)^\t0x[0-9a-f]+ (\d+) \(([^)\t]*)\)\t([A-Z]\w*)(?:\t(.*))?$`)
	wideRegister = regexp.MustCompile(`\b[YZ]\d+\b`)
	legacyTarget = regexp.MustCompile(`(^|, )X\d+$`)
)

// listing is the code of a package. The maps lead from a function and a program
// counter, and from a function's name, to places in code.
type listing struct {
	code    []instruction
	labels  map[string]int
	callers map[string][]int
	wide    map[string]bool // functions that use YMM or ZMM registers
}

func parseListing(text string) *listing {
	l := &listing{labels: map[string]int{}, callers: map[string][]int{}, wide: map[string]bool{}}
	function := ""
	for _, m := range listed.FindAllStringSubmatch(text, -1) {
		pc, _ := strconv.Atoi(m[1])
		in := instruction{function: function, at: m[2], op: m[3], args: m[4]}
		switch in.op {
		case "TEXT":
			function, _, _ = strings.Cut(in.args, "(SB)")
			continue
		case "PCDATA", "FUNCDATA":
			continue
		case "CALL":
			l.callers[in.callee()] = append(l.callers[in.callee()], len(l.code))
		}
		label := fmt.Sprint(function, " ", pc)
		if _, known := l.labels[label]; !known {
			l.labels[label] = len(l.code)
		}
		l.wide[function] = l.wide[function] || wideRegister.MatchString(in.args)
		l.code = append(l.code, in)
	}
	return l
}

// next lists where the code continues after the instruction at i.
func (l *listing) next(i int) []int {
	in := l.code[i]
	switch {
	case in.op == "RET":
		var after []int
		for _, call := range l.callers[in.function] {
			after = append(after, call+1)
		}
		return after
	case in.op == "CALL" && strings.HasPrefix(in.args, "runtime.panic"):
		return nil
	case in.op == "CALL" && l.wide[in.callee()]:
		return []int{i + 1, l.labels[in.callee()+" 0"]}
	case in.op == "JMP":
		return []int{l.labels[in.function+" "+in.args]}
	case strings.HasPrefix(in.op, "J"):
		return []int{i + 1, l.labels[in.function+" "+in.args]}
	}
	return []int{i + 1}
}

// faults describes the legacy SSE instructions, and the calls of scalar code, that
// can run after a vector instruction without a VZEROUPPER in between.
func (l *listing) faults() []string {
	var found []string
	seen := make([]bool, len(l.code))
	var follow func(i int)
	follow = func(i int) {
		if i >= len(l.code) || seen[i] || l.code[i].op == "VZEROUPPER" {
			return
		}
		seen[i] = true
		in := l.code[i]
		scalar := in.op == "CALL" && !l.wide[in.callee()] && !strings.HasPrefix(in.args, "runtime.panic")
		if scalar || in.writesLegacy() {
			found = append(found, fmt.Sprintf("%s: %s: %s %s after vector instructions, without VZEROUPPER", in.at, in.function, in.op, in.args))
		}
		for _, n := range l.next(i) {
			follow(n)
		}
	}
	for i, in := range l.code {
		if wideRegister.MatchString(in.args) {
			follow(i)
		}
	}
	slices.Sort(found)
	return slices.Compact(found)
}
