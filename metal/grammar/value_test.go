package grammar

import (
	"cmp"
	"encoding/json"
	"strings"
	"testing"
)

// TestExponentsAreDecimal: JSON allows leading zeros in an exponent, which do not make it octal.
func TestExponentsAreDecimal(t *testing.T) {
	for n, same := range map[json.Number]json.Number{"1e0400": "1e400", "1e+010": "1e10", "1E-0400": "1e-400", "2e009": "2000000000"} {
		if !equal(n, same) {
			t.Errorf("%s is not %s", n, same)
		}
	}
	for _, n := range []json.Number{"1e401", "1e0401", "1e0999", "1e0999999", "1e-0999999", "1E+0999999"} {
		if r, ok := exact(n); ok {
			t.Errorf("%s is read as a number of %d bits", n, r.Num().BitLen()+r.Denom().BitLen())
		}
	}
}

// TestLongTextsOfASchemaAreCounted: each look at a text is work in proportion to its length.
func TestLongTextsOfASchemaAreCounted(t *testing.T) {
	const looks, length = 100, 50_000
	anyOf := func(part string) string { return `"anyOf":[` + listed(part, looks) + `]` }
	for name, of := range map[string]struct {
		member, root string // with TEXT for the text
		bytesPerUnit int
	}{
		"a listed text":                {member: `"enum":["TEXT"],` + anyOf(`{"enum":[1]}`), bytesPerUnit: 4},
		"a name within a listed value": {member: `"enum":[{"TEXT":1}],` + anyOf(`{"minProperties":2}`), bytesPerUnit: 4},
		"a required name":              {member: `"enum":[{}],` + anyOf(`{"$ref":"#/$defs/r"}`), root: `"$defs":{"r":{"required":["TEXT"]}}`, bytesPerUnit: 4 * textBytes},
		"a dialect":                    {member: anyOf(`{"$ref":"#"}`), root: `"$schema":"TEXT draft-06"`, bytesPerUnit: 4 * textBytes},
	} {
		t.Run(name, func(t *testing.T) {
			var work [2]int64
			for i, n := range []int{1, length} {
				source := `{"properties":{"a":{` + of.member + `}},` + cmp.Or(of.root, `"title":""`) + `}`
				var err error
				if _, work[i], err = compiled(t.Context(), schema(strings.ReplaceAll(source, "TEXT", strings.Repeat("a", n)))); err != nil {
					t.Fatal(err)
				}
			}
			if more, least := work[1]-work[0], int64(looks*(length/of.bytesPerUnit)); more < least {
				t.Errorf("%d looks at %d bytes take %d units of work, want at least %d", looks, length, more, least)
			}
		})
	}
}

// TestAQuotedTextIsReadBack: each character is escaped where JSON needs it, and only there.
func TestAQuotedTextIsReadBack(t *testing.T) {
	for c := range rune(0x100) {
		var back string
		text := "a" + string(c) + "é"
		if err := json.Unmarshal([]byte(quoted(text)), &back); err != nil || back != text {
			t.Errorf("%q is read back as %q: %v", text, back, err)
		}
		if plain := c >= ' ' && c != '"' && c != '\\'; plain != (quoted(text) == `"`+text+`"`) {
			t.Errorf("%q is written as %s", text, quoted(text))
		}
	}
}
