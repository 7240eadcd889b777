package store

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
)

// Keyring seals small secrets (AES-256-GCM) and hashes what only has to be
// recognised. It lives in memory; the keys come from the environment and are
// never in the database file, so a copy of the file alone opens nothing.
type Keyring struct {
	ids  []string // ids[0] seals
	gcm  map[string]cipher.AEAD
	salt []byte
}

const sealFormat = 1 // the first byte of a sealed value

// ParseKeyring reads master keys as "id:hex[,id:hex…]", 32 bytes in 64 hex
// digits each: the first seals, all open. salt keys the hashes of API keys and
// customer ids and must stay the same for the life of the file.
func ParseKeyring(masterKeys, salt string) (*Keyring, error) {
	if len(salt) < 16 {
		return nil, errors.New("the salt must have at least 16 characters")
	}
	k := &Keyring{gcm: map[string]cipher.AEAD{}, salt: []byte(salt)}
	for part := range strings.SplitSeq(masterKeys, ",") {
		id, text, ok := strings.Cut(strings.TrimSpace(part), ":")
		key, err := hex.DecodeString(text)
		if !ok || id == "" || len(id) > 32 || err != nil || len(key) != 32 {
			return nil, errors.New("want id:key[,id:key…], each key 32 bytes as 64 hex digits")
		}
		if _, twice := k.gcm[id]; twice {
			return nil, fmt.Errorf("master key id %q is there twice", id)
		}
		block, err := aes.NewCipher(key)
		if err != nil {
			return nil, err // unreachable unless the key's length is wrong
		}
		gcm, err := cipher.NewGCM(block)
		if err != nil {
			return nil, err // unreachable: AES has the block size GCM wants
		}
		k.ids, k.gcm[id] = append(k.ids, id), gcm
	}
	return k, nil
}

// Seal encrypts secret. context binds it to its place ("subscription id,
// version"): a sealed value moved to another row does not open there.
func (k *Keyring) Seal(secret []byte, context string) []byte {
	id := k.ids[0]
	gcm := k.gcm[id]
	out := make([]byte, 0, 2+len(id)+gcm.NonceSize()+len(secret)+gcm.Overhead())
	out = append(out, sealFormat, byte(len(id)))
	out = append(out, id...)
	nonce := make([]byte, gcm.NonceSize())
	rand.Read(nonce) // never fails
	out = append(out, nonce...)
	return gcm.Seal(out, nonce, secret, []byte(context))
}

// Unseal opens what Seal made with the same context. The error names the key
// that is missing, never a secret.
func (k *Keyring) Unseal(sealed []byte, context string) ([]byte, error) {
	if len(sealed) < 2 || sealed[0] != sealFormat || len(sealed) < 2+int(sealed[1]) {
		return nil, errors.New("not a sealed value")
	}
	end := 2 + int(sealed[1])
	id, rest := string(sealed[2:end]), sealed[end:]
	gcm, ok := k.gcm[id]
	if !ok {
		return nil, fmt.Errorf("sealed with master key %q, which is not configured", id)
	}
	if len(rest) < gcm.NonceSize() {
		return nil, errors.New("not a sealed value")
	}
	secret, err := gcm.Open(nil, rest[:gcm.NonceSize()], rest[gcm.NonceSize():], []byte(context))
	if err != nil {
		return nil, fmt.Errorf("master key %q does not open this value here", id)
	}
	return secret, nil
}

// Reseal seals a value again under the first key. changed is false where it is
// under that key already.
func (k *Keyring) Reseal(sealed []byte, context string) (resealed []byte, changed bool, err error) {
	secret, err := k.Unseal(sealed, context)
	if err != nil {
		return nil, false, err
	}
	if string(sealed[2:2+sealed[1]]) == k.ids[0] {
		return sealed, false, nil
	}
	return k.Seal(secret, context), true, nil
}

// Hash is HMAC-SHA256(value, salt): for recognising a secret, not for getting
// it back.
func (k *Keyring) Hash(value string) []byte {
	mac := hmac.New(sha256.New, k.salt)
	mac.Write([]byte(value))
	return mac.Sum(nil)
}

// HashID is how a customer id appears in logs: the first 8 hex digits of its
// Hash.
func (k *Keyring) HashID(id string) string { return hex.EncodeToString(k.Hash(id)[:4]) }
