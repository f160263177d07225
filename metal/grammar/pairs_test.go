package grammar

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// TestAlternativesThatMatchNothingAreNotCompared: each pair of thousands would take time that no
// budget counts.
func TestAlternativesThatMatchNothingAreNotCompared(t *testing.T) {
	takes := func(keyword string) time.Duration {
		source := fmt.Sprintf(`{"$defs":{"a":{%q:[%s]}},"anyOf":[{"type":"string"},{"$ref":"#/$defs/a"},{"$ref":"#/$defs/a"}]}`, keyword, listed("false", 20_000))
		least := time.Hour
		for range 3 {
			began := time.Now()
			if _, _, err := compiled(t.Context(), schema(source)); err != nil {
				t.Fatal(err)
			}
			least = min(least, time.Since(began))
		}
		return least
	}
	if any, one := takes("anyOf"), takes("oneOf"); one > 10*any {
		t.Errorf("oneOf takes %s, and anyOf of the same alternatives %s", one, any)
	}
}

// TestCharactersThatLeadApartAreNotAllTried: those of ASCII lead to one state, and each of thousands
// of others to another.
func TestCharactersThatLeadApartAreNotAllTried(t *testing.T) {
	var b strings.Builder
	b.WriteString("[ -\u0fff]x")
	for bit := range 11 {
		b.WriteString("|[")
		for from := 0x1000 + 1<<bit; from < 0x1800; from += 2 << bit {
			fmt.Fprintf(&b, "%c-%c", from, from+1<<bit-1)
		}
		fmt.Fprintf(&b, "]%c", 'a'+bit)
	}
	g, _, err := compiled(t.Context(), Spec{Kind: Regex, Source: b.String()})
	if err != nil {
		t.Fatal(err)
	}
	m := NewTable(g, NewVocabulary(1, func(int32) []byte { return []byte("a") })).Match(false)
	before := m.account.left + m.account.token
	if _, err := m.Mask(t.Context()); err != nil {
		t.Fatal(err)
	}
	if spent := before - m.account.left; spent > 600_000 { // with a state for each character it takes 786,000
		t.Errorf("a mask of one token took %d units of work", spent)
	}
}
