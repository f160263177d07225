package intake

import (
	"fmt"
	"strings"
)

// endings returns how often a listener ended or refused a connection for a reason.
func (l *Listener) endings(why reason) int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ended[why]
}

// posts are requests with a large body that a client sends at once: to /more, and one to /last.
func posts(n int) string {
	const length = 200 << 10
	one := fmt.Sprintf("POST /more HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", length, strings.Repeat(" ", length))
	return strings.Repeat(one, n-1) + strings.Replace(one, "more", "last", 1)
}
