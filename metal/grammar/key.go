package grammar

import (
	"bufio"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
)

// key is the same for equal constraints, and no others.
func (s Spec) key() (k [sha256.Size]byte) {
	hash := sha256.New()
	h := bufio.NewWriter(hash)
	fmt.Fprintf(h, "%d %d ", s.Kind, len(s.Choices))
	writeTexts(h, s.Source)
	writeTexts(h, s.Choices...)
	if s.Calls != nil {
		s.Calls.write(h)
	}
	if s.Else != nil {
		other := s.Else.key()
		h.Write(other[:])
	}
	h.Flush()
	hash.Sum(k[:0])
	return k
}

// write writes all that the form of calls depends on. There may be several groups for each function,
// all with the same chains, which are written once.
func (c *Calls) write(h *bufio.Writer) {
	alone := *c
	alone.Groups, alone.First = nil, nil
	writeJSON(h, alone)
	type place struct {
		first *Chain
		n     int
	}
	seen := map[place]int{}
	for _, groups := range [][]Group{c.Groups, c.First} {
		writeNumber(h, len(groups))
		for _, g := range groups {
			writeTexts(h, g.Begin, g.Only)
			p := place{n: len(g.Chains)}
			if p.n > 0 {
				p.first = &g.Chains[0]
			}
			i, written := seen[p]
			if !written {
				i = len(seen)
				seen[p] = i
			}
			writeNumber(h, i)
			if !written {
				writeJSON(h, g.Chains)
			}
		}
	}
}

func writeTexts(h *bufio.Writer, parts ...string) {
	for _, p := range parts {
		writeNumber(h, len(p))
		h.WriteString(p)
	}
}

func writeNumber(h *bufio.Writer, n int) {
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], uint64(n))
	h.Write(b[:])
}

func writeJSON(h *bufio.Writer, v any) {
	if err := json.NewEncoder(h).Encode(v); err != nil {
		panic(fmt.Sprintf("calls cannot be encoded: %v", err))
	}
}
