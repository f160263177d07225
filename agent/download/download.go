// Package download fetches one file over https, whole and proven.
//
// It owns the client that a Mac uses for everything a tenant names (address
// guard, redirects, time and size limits), resume after a cut, and the check
// of size and SHA-256. It refuses plain http, proxies from the environment,
// compressed bodies, and every address that is not public unless the agent's
// configuration allows it: the check is made on the address that is dialled,
// so a name that changes its answer gains nothing. It never leaves a file
// under its final name: whoever calls Fetch moves it there.
//
// Every failure is an *Error with a condition reason and a sentence.
//
// Start reading at Fetcher.Fetch, then Client.Get.
package download
