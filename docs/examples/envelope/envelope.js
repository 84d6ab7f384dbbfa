// Returns the headers and the body of what nsqjs has in message.body.
const MAGIC = Buffer.from('ffff4e4801', 'hex')

function open (data) {
  if (data.length < 8 || !data.subarray(0, 5).equals(MAGIC)) return [{}, data]
  const end = 7 + data.readUInt16BE(5)
  if (end >= data.length) return [{}, data]
  const body = data.subarray(end)
  let parts
  try {
    parts = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(data.subarray(7, end)).split('\0')
  } catch (error) {
    return [{}, body]
  }
  const headers = new Map()
  for (let i = 0; i + 1 < parts.length; i += 2) headers.set(parts[i], parts[i + 1])
  if (headers.has('') || 2 * headers.size !== parts.length || parts.length > 128) return [{}, body]
  return [Object.fromEntries(headers), body]
}

module.exports = { open }
