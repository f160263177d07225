package agentapi

import (
	"net/http"
	"testing"
)

func TestTokensAreReadOrUnknown(t *testing.T) {
	for text, want := range map[string]TokenCount{"12+34": {Prompt: 12, Generated: 34}, "7+7": {Prompt: 7, Generated: 7}, "0+0": {},
		"2147483648+1": {Prompt: 1 << 31, Generated: 1}} {
		if n, ok := Tokens(http.Header{HeaderTokens: {text}}); !ok || n != want {
			t.Errorf("%q is %v, %v", text, n, ok)
		}
	}
	for _, text := range []string{"", "12", "12+", "+34", "-1+2", "1+2+3", "1e3+1", "2147483649+1", "99999999999999999999+1", "a+b"} {
		if n, ok := Tokens(http.Header{HeaderTokens: {text}}); ok {
			t.Errorf("%q is %v", text, n)
		}
	}
	h := http.Header{}
	SetTokens(h, HeaderTokens, 12, 34)
	if n, ok := Tokens(h); !ok || n.Sum() != 46 {
		t.Errorf("%v is %v, %v", h, n, ok)
	}
}
