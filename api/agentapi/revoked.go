package agentapi

import (
	"encoding/json"
	"fmt"
	"time"
)

// KeyRevoked is the key of Revoked in the Secret of each Mac.
const KeyRevoked = "revoked-macs"

// Revoked are the MacNodes that were deleted while grants to them may be valid, by
// UID, each with the time in seconds since 1970 after which none is.
type Revoked map[string]int64

// ReadRevoked parses what Encode returned; of nothing it returns none.
func ReadRevoked(b []byte) (Revoked, error) {
	r := Revoked{}
	if len(b) == 0 {
		return r, nil
	}
	if err := json.Unmarshal(b, &r); err != nil {
		return nil, fmt.Errorf("%s: %w", KeyRevoked, err)
	}
	return r, nil
}

// Add returns the MacNodes that are revoked once that of a UID is too, without those
// to which no grant is valid any more.
func (r Revoked) Add(uid string, now, until time.Time) Revoked {
	out := Revoked{uid: until.Unix()}
	for other, end := range r {
		if other != uid && now.Unix() < end {
			out[other] = end
		}
	}
	return out
}

// Encode returns the same bytes for the same MacNodes.
func (r Revoked) Encode() ([]byte, error) { return json.Marshal(r) }
