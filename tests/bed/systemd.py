"""systemd's end of the notification socket, played by a test. `address` is what goes into NOTIFY_SOCKET."""

import socket


class NotifySocket:
    def __init__(self, address: str) -> None:
        self.address = address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(address.replace("@", "\0", 1))

    def hears(self, timeout_s: float = 30.0) -> str:
        """The next message. Raises TimeoutError."""
        self._socket.settimeout(timeout_s)
        return self._socket.recv(4096).decode()

    def hears_of(self, words: str, timeout_s: float = 30.0) -> str:
        """The next message that has these words."""
        while words not in (message := self.hears(timeout_s)):
            pass
        return message

    def heard(self) -> list[str]:
        """All that has come so far and was not read yet."""
        messages = []
        while True:
            try:
                messages.append(self.hears(0.0))
            except BlockingIOError:
                return messages

    def close(self) -> None:
        self._socket.close()
