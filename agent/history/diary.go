package history

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

// diary are the lines that were not printed yet. Safe for concurrent use.
type diary struct {
	begun time.Time
	quiet bool // set before any output is written: lines are not kept

	mu    sync.Mutex // guards lines
	lines []line
}

type line struct {
	at    time.Duration
	name  string
	whom  string // the name, or what several have in common
	text  string
	times int
}

func (d *diary) write(whom, format string, args ...any) {
	if d.quiet {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lines = append(d.lines, line{time.Since(d.begun), whom, whom, fmt.Sprintf(format, args...), 1})
}

// take returns what was written since the last time, in order; what one name
// says again and again is one line.
func (d *diary) take() string {
	d.mu.Lock()
	lines := d.lines
	d.lines = nil
	d.mu.Unlock()
	slices.SortStableFunc(lines, func(a, b line) int {
		if a, b := a.at.Truncate(instant), b.at.Truncate(instant); a != b {
			return cmp.Compare(a, b)
		}
		if repeats(a.text) && repeats(b.text) && a.whom == b.whom {
			return strings.Compare(a.text, b.text) // polls and calls fail side by side
		}
		return cmp.Or(compareNames(a.whom, b.whom), rank(a.text)-rank(b.text))
	})
	var b strings.Builder
	for _, l := range together(lines) {
		fmt.Fprintf(&b, "%s %s: %s", clock(l.at), l.whom, l.text)
		if l.times > 1 {
			fmt.Fprintf(&b, " (%d times)", l.times)
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// instant is what counts as one: engines that do something at the same time are
// less than that apart, in the same order in every run.
const instant = time.Millisecond

// together makes one line of an error that polls find again, and of what
// happens to all requests of one command in one instant.
func together(lines []line) (out []line) {
	for _, l := range lines {
		if repeats(l.text) {
			if i := slices.IndexFunc(out, func(o line) bool { return o.whom == l.whom && o.text == l.text }); i >= 0 {
				out[i].times++
				continue
			}
		}
		if l.whom = strings.TrimRight(l.whom, "0123456789"); !strings.HasSuffix(l.whom, ".") {
			l.whom = l.name
		} else if n := len(out); n > 0 && out[n-1].at.Truncate(instant) == l.at.Truncate(instant) && out[n-1].text == l.text && out[n-1].whom == l.whom+"N" {
			out[n-1].times++
			continue
		} else {
			l.whom += "N"
		}
		out = append(out, l)
	}
	return out
}

// rank puts what is noted of one engine in one instant, by several goroutines,
// in the order in which it happened.
func rank(text string) int {
	for i, prefix := range [][]string{
		{"Unloading engine", "Aborting requests"}, {"Trim:", "Abort:", "Shutdown:"}, {"Engine does not exit", "signal:"}, {"reclaimed:"}, {"started"},
	} {
		for _, p := range prefix {
			if strings.HasPrefix(text, p) {
				return i
			}
		}
	}
	return 9
}

// repeats reports whether a line is printed once: errors, which every poll finds
// again.
func repeats(text string) bool { return strings.HasPrefix(text, "error: ") }

// compareNames puts r2 before r10.
func compareNames(a, b string) int {
	if len(a) != len(b) && strings.TrimRight(a, "0123456789") == strings.TrimRight(b, "0123456789") {
		return len(a) - len(b)
	}
	return strings.Compare(a, b)
}

// clock writes a time since the beginning, such as 75.5s.
func clock(d time.Duration) string {
	return fmt.Sprintf("%.1fs", d.Truncate(instant).Seconds())
}
