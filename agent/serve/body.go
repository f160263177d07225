package serve

import (
	"net/http"
	"sync/atomic"

	"metalfleet.dev/metalfleet/api/intake"
	"metalfleet.dev/metalfleet/api/openai"
)

// objectBytes is what an object of a body, such as a message of few bytes, takes once it is
// decoded: 341 to 690 bytes, by route.
const objectBytes = 768

// tokenBytes is what a token takes once it is decoded.
const tokenBytes = 4

// counted is what a request body makes the agent hold.
type counted struct {
	*handler
	owner string
	// all counts: that of the body is the first.
	all []intake.Kept
	// stays is what of them counts towards staying.
	stays atomic.Int64
}

// release ends all counts; twice does nothing.
func (c *counted) release() {
	for _, kept := range c.all {
		kept.Release()
	}
	if n := c.stays.Swap(0); n > 0 {
		c.staying.Give(c.owner, n)
	}
}

// more counts n bytes besides those of the body, if n is positive.
func (c *counted) more(n int64) error {
	kept, err := c.bodies.Hold(c.owner, max(0, n))
	c.all = append(c.all, kept)
	return err
}

// decoded counts n bytes instead of those of the body, if it has more than that.
func (c *counted) decoded(body []byte, n int64) {
	if n >= int64(len(body)) {
		return
	}
	if kept, err := c.bodies.Hold(c.owner, n); err == nil { // else the body counts on
		c.all[0].Release()
		c.all = append(c.all, kept)
	}
}

// stay counts the memory of a request towards that of all with further choices: these may take hours,
// in which other requests need memory.
func (c *counted) stay() error {
	n := int64(0)
	for _, kept := range c.all {
		n += kept.Bytes()
	}
	if !c.staying.Take(c.owner, n) {
		return &openai.Error{Status: http.StatusServiceUnavailable, Type: openai.TypeUnavailable, Code: openai.CodeOverloaded, RetryAfter: retrySoon,
			Message: "Requests with several prompts or choices use all of the memory for them. Send fewer at once, or try again later."}
	}
	c.stays.Add(n)
	return nil
}

// readBody reads a request body. Its memory, and what its objects take once they are decoded,
// counts against their owner until it is released.
func (h *handler) readBody(w http.ResponseWriter, r *http.Request) (body []byte, c *counted, err error) {
	c = &counted{handler: h, owner: ownerOf(r.Header)}
	if err := h.memory(); err != nil {
		return nil, c, err
	}
	body, err = h.ReadBody(w, r, func(interrupt func()) ([]byte, error) {
		body, kept, err := h.bodies.Read(r.Body, c.owner, r.ContentLength, h.MaxBodyBytes, interrupt)
		c.all = append(c.all, kept)
		return body, err
	})
	if err == nil {
		err = c.more(objectBytes * int64(objects(body)))
	}
	if err != nil {
		c.release()
	}
	return body, c, err
}

// decodedDepth is how deep the objects are that are decoded: messages, their parts and calls, and
// the functions of these. Deeper ones, such as schemas of tools, stay JSON.
const decodedDepth = 4

// objects counts the objects of a body that are decoded, up to as many as a request may have.
func objects(body []byte) (n int) {
	depth, inString := 0, false
	for i := 0; i < len(body) && n < openai.MaxParts; i++ {
		switch c := body[i]; {
		case c == '"':
			inString = !inString
		case c == '\\' && inString:
			i++
		case inString:
		case c == '}':
			depth--
		case c == '{':
			if depth++; depth <= decodedDepth {
				n++
			}
		}
	}
	return n
}
