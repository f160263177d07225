package lint

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// counts of findings by package or document, then by kind.
type counts map[string]map[string]int

func countOf(found []finding) counts {
	out := counts{}
	for _, f := range found {
		if out[f.at] == nil {
			out[f.at] = map[string]int{}
		}
		out[f.at][f.kind]++
	}
	return out
}

// parseCounts reads lines like "agent/pool comments=3 test-strings=1".
func parseCounts(text string) (counts, error) {
	out := counts{}
	for i, line := range strings.Split(text, "\n") {
		fields := strings.Fields(line)
		if len(fields) == 0 || strings.HasPrefix(line, "#") {
			continue
		}
		out[fields[0]] = map[string]int{}
		for _, field := range fields[1:] {
			kind, number, _ := strings.Cut(field, "=")
			n, err := strconv.Atoi(number)
			if err != nil || n < 1 {
				return nil, fmt.Errorf("dialect.txt:%d: want PATH KIND=NUMBER..., not %q", i+1, line)
			}
			out[fields[0]][kind] = n
		}
	}
	return out, nil
}

func (c counts) String() string {
	var b strings.Builder
	b.WriteString("# Phrases and names of our old dialect (phrases.txt) that are left in each package and document. They only become fewer;\n" +
		"# what is not listed has none. After taking some out: " + lowerCounts + "\n")
	for _, at := range slices.Sorted(maps.Keys(c)) {
		if len(c[at]) == 0 {
			continue
		}
		b.WriteString(at)
		for _, kind := range slices.Sorted(maps.Keys(c[at])) {
			fmt.Fprintf(&b, " %s=%d", kind, c[at][kind])
		}
		b.WriteString("\n")
	}
	return b.String()
}

// lowerCounts is the command that writes the counts.
const lowerCounts = "go test ./hack/lint -run Dialect -write"

// lowered returns the counts to record: for each kind the lower of the recorded and the
// current one.
func lowered(recorded, found counts) counts {
	out := counts{}
	for at, kinds := range found {
		for kind, n := range kinds {
			if n = min(n, recorded[at][kind]); n > 0 {
				if out[at] == nil {
					out[at] = map[string]int{}
				}
				out[at][kind] = n
			}
		}
	}
	return out
}

// ratchet lists the differences to the recorded counts.
func ratchet(recorded counts, found []finding) (out []string) {
	now := countOf(found)
	for _, at := range slices.Sorted(maps.Keys(now)) {
		for _, kind := range slices.Sorted(maps.Keys(now[at])) {
			if n, most := now[at][kind], recorded[at][kind]; n > most {
				out = append(out, fmt.Sprintf("%s: %d phrases of our old dialect in its %s, at most %d are allowed; these are all:", at, n, kind, most))
				for _, f := range found {
					if f.at == at && f.kind == kind {
						out = append(out, f.String())
					}
				}
			}
		}
	}
	for _, at := range slices.Sorted(maps.Keys(recorded)) {
		for _, kind := range slices.Sorted(maps.Keys(recorded[at])) {
			if n, most := now[at][kind], recorded[at][kind]; n < most {
				out = append(out, fmt.Sprintf("%s: %d phrases of our old dialect in its %s, and dialect.txt still allows %d; lower it: %s", at, n, kind, most, lowerCounts))
			}
		}
	}
	return out
}
