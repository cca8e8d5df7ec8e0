def word():
    return "helped"
