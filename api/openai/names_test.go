package openai

import (
	"strings"
	"testing"
)

// TestLongNamesAreNotDecoded: the proxy would keep them besides the body.
func TestLongNamesAreNotDecoded(t *testing.T) {
	long := strings.Repeat("x", 1<<20)
	e, err := DecodeEnvelope([]byte(`{"model":"m","prompt_cache_key":"` + long + `","previous_response_id":"` + long + `","input":[{"type":"item_reference","id":"` + long + `"}]}`))
	if n := len(e.CacheKey) + len(e.Previous) + len(e.Reference); err != nil || n > 0 {
		t.Errorf("%d bytes are decoded: %v", n, err)
	}
	e, err = DecodeEnvelope([]byte(`{"model":"m","prompt_cache_key":"` + long[:1000] + `","previous_response_id":"resp_1"}`))
	if err != nil || len(e.CacheKey) != 1000 || e.Previous != "resp_1" {
		t.Errorf("a key has %d bytes, and the previous response is %q: %v", len(e.CacheKey), e.Previous, err)
	}
}
